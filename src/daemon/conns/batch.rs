//! What came until one moment: calls, closed connections, and deaths.
//!
//! Invariant: each death that the kernel reported before a call was read is in the batch of that call,
//! or in an earlier one. It holds by construction: only [`Batch::take`] can read connections
//! ([`Reading`]), it takes the deaths after the last read, and calls are served only with a batch.

use std::time::{Duration, Instant};

use super::super::events::Source;
use super::super::owners::Ended;
use super::super::server::Server;
use super::Severed;
use crate::sys::clock;

/// No listener queues more connections than this: with the default of `net.core.somaxconn` it is a
/// sixteenth.
const QUEUED_CONNECTIONS_MAX: usize = 65_536;

/// Permission to read connections: only [`Batch::take`] has it.
#[derive(Debug)]
pub(in super::super) struct Reading(());

impl Reading {
    #[cfg(test)]
    pub(in super::super) fn in_a_test() -> Self {
        Self(())
    }
}

/// What came until one moment.
#[derive(Debug)]
pub(in super::super) struct Batch {
    /// The ends that the kernel reported.
    pub(in super::super) ended: Ended,
    /// Connections whose peer is gone, or shall be.
    pub(in super::super) severed: Vec<Severed>,
    /// Leases that were over at this time, in milliseconds of CLOCK_BOOTTIME, have ended: every
    /// renewal that was sent until then has been read. `None` if no lease may end.
    pub(in super::super) leases_over_at: Option<u64>,
    _taken: Reading,
}

/// How far the queue of the listener was read since a lease was over.
#[derive(Debug, Default)]
pub(in super::super) struct Catching {
    /// When it began, in milliseconds of CLOCK_BOOTTIME.
    since: Option<u64>,
    accepted: usize,
}

impl Batch {
    /// Reads what was sent, and takes in what the kernel reported by then.
    pub(in super::super) fn take(server: &mut Server) -> Self {
        let reading = Reading(());
        let begun = clock::boottime_ms();
        let lease_is_over = server.leases.next_end().is_some_and(|end| end <= begun);
        server.conns.hear(&reading);
        if lease_is_over {
            // The daemon may have been stopped since it was woken: renewals may have come meanwhile.
            server.conns.wait(Some(Duration::ZERO));
            server.conns.hear(&reading);
        }
        let mut accepted = Accepted::default();
        if server.home.listener.pauses_until().is_some_and(|until| until <= Instant::now()) {
            server.conns.reported.note(Source::Listener);
        }
        if lease_is_over || server.conns.reported.has(Source::Listener) {
            accepted = server.accept();
            server.conns.hear_newcomers(&reading);
        }
        let leases_over_at =
            lease_is_over.then(|| server.catching.caught_up(begun, accepted)).flatten();
        Self {
            // After the last read.
            ended: server.owners.take_ended(),
            severed: server.conns.take_severed(),
            leases_over_at,
            _taken: reading,
        }
    }
}

/// What [`Server::accept`] did.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Accepted {
    /// How many connections it took from the queue.
    pub(in super::super) count: usize,
    /// Whether there may be more.
    pub(in super::super) more: bool,
}

impl Catching {
    /// By when every renewal that was sent has been read, if that can be told: while peers connect
    /// faster than they are accepted, those that queued at the beginning are waited for.
    fn caught_up(&mut self, begun: u64, accepted: Accepted) -> Option<u64> {
        let since = *self.since.get_or_insert(begun);
        self.accepted += accepted.count;
        if accepted.more && self.accepted < QUEUED_CONNECTIONS_MAX {
            return None;
        }
        *self = Self::default();
        Some(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_connections_delays_the_end_of_a_lease_by_one_queue_at_most() {
        let mut catching = Catching::default();
        let all = Accepted { count: 3, more: false };
        assert_eq!(catching.caught_up(10, all), Some(10));
        let part = Accepted { count: QUEUED_CONNECTIONS_MAX / 4, more: true };
        let ends = [20, 30, 40, 50, 60].map(|begun| catching.caught_up(begun, part));
        assert_eq!(ends, [None, None, None, Some(20), None]);
        assert_eq!(catching.caught_up(70, all), Some(60), "what came after 60 may be unread");
    }
}
