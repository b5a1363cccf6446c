//! The input of one turn: calls, closed connections, and deaths.
//!
//! Invariant: the batch of a call, or an earlier one, contains each death that the kernel reported
//! before the call was read. So only [`Batch::take`] reads connections, and it takes the deaths
//! after the last read.

use std::time::Duration;

use crate::net::accept_backlog::Accepted;
use crate::net::connections::Disconnected;
use crate::net::events::Source;
use crate::processes::owners::Ended;
use crate::server::Server;
use canal_sys::clock;

/// The input of one turn.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The ends of owners and of descendants that the kernel reported.
    pub ended: Ended,
    /// Connections whose peer is gone, or that the daemon closes.
    pub disconnected: Vec<Disconnected>,
    /// Leases that had expired at this time, in milliseconds of CLOCK_BOOTTIME, end: the daemon has
    /// read every renewal that was sent until then. `None` if no lease may end.
    pub leases_over_at: Option<u64>,
}

impl Batch {
    /// Reads all messages of clients, then takes the deaths that the kernel has reported by then.
    pub(crate) fn take(server: &mut Server) -> Self {
        let begun = clock::boottime_ms();
        let lease_is_over = server.leases.next_end().is_some_and(|end| end <= begun);
        server.conns.read();
        if lease_is_over {
            // The daemon may have been stopped after it woke up, and renewals may have arrived
            // since.
            server.conns.wait(Some(Duration::ZERO));
            server.conns.read();
        }
        let mut accepted = Accepted::default();
        if server.runtime_dir.listener.pauses_until().is_some_and(|until| until <= clock::now()) {
            server.conns.reported.note(Source::Listener);
        }
        if lease_is_over || server.conns.reported.has(Source::Listener) {
            accepted = server.accept();
            server.conns.read_newcomers();
        }
        let leases_over_at =
            lease_is_over.then(|| server.conns.accept_backlog.caught_up(begun, accepted)).flatten();
        Self {
            // The deaths are taken after the last read.
            ended: server.owners.take_ended(),
            disconnected: server.conns.take_disconnected(),
            leases_over_at,
        }
    }
}
