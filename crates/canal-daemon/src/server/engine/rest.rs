//! Whether this host may rest: then an engine that wakes every listening host for each batch does
//! not wake it.
//!
//! Invariant: whatever a batch of another host can change at once for a client or lease of this
//! host keeps this host listening.

use crate::net::connection::Connection;
use crate::server::Server;

impl Server {
    /// Passes the calls of this turn to the engine.
    pub(crate) fn ask_engine(&mut self) {
        let is_needed = self.needs_announcements();
        if let Some(cluster) = &mut self.cluster {
            cluster.ask_engine(is_needed);
        }
    }

    /// Whether something here depends on the batches of other hosts. A process that holds a lock
    /// does not: its own host ends the hold, and a renewal reports a lost membership. Only a hook
    /// has to learn at once that another host released the lock by force. A lease does, because its
    /// renewal must not wait for a read.
    fn needs_announcements(&self) -> bool {
        let table = &self.ledger.table;
        let holds = || table.frames_of_host(self.ledger.host).next().is_some();
        let watches = |conn: &Connection| conn.watches() || conn.watches_leader();
        self.cluster.is_some()
            && (self.waiters.iter().next().is_some()
                || self.leases.next_end().is_some()
                || table.recovery().is_some()
                || self.hooks.are_told_of_ends() && holds()
                || self.conns.any(watches))
    }

    /// Whether the table is up to date, so that clients may be served. If not, this host reads the
    /// log.
    pub(crate) fn is_present(&mut self) -> bool {
        self.cluster.as_mut().is_none_or(|cluster| cluster.is_present())
    }
}
