//! Ends commands in time, before another host can be granted their locks.
//!
//! The supervisor (`canal run`) reads the same deadlines on the deadline page, and ends its command
//! with all processes that the command started. The daemon's signals are the first line of defence,
//! and the only one for a process without a supervisor.
//!
//! Invariant: after an incarnation lost its holds, this host asks for no grant until every process
//! that has to be killed is dead.

use crate::cluster::end_commands::Watched;
use crate::server::Server;
use canal_sys::clock;

impl Server {
    /// Signals the commands whose deadline has passed. Each turn begins with this, because the
    /// daemon itself may have been stopped for any length of time.
    pub(crate) fn stop_in_time(&mut self) {
        let is_member = self.ledger.is_member();
        let Some(cluster) = &mut self.cluster else { return };
        let watched = Watched { table: &self.ledger.table, owners: &self.owners };
        let now = clock::boottime_ms();
        cluster.stop_due(is_member, watched, now);
        self.end_lost(now);
    }

    /// Starts to kill all commands for which this host had locks. They must be dead before it
    /// joins.
    pub(crate) fn clear(&mut self) {
        let Some(cluster) = &mut self.cluster else { return };
        let watched = Watched { table: &self.ledger.table, owners: &self.owners };
        let now = clock::boottime_ms();
        // The processes of an earlier daemon have had their time to end.
        cluster.clear(watched, now);
        self.end_lost(now);
    }

    /// Ends the commands that are due. Once they are dead, asks for the requests that had to wait
    /// for that.
    pub(crate) fn end_lost(&mut self, now: u64) {
        let Some(cluster) = &mut self.cluster else { return };
        if cluster.end_lost(now) && self.ledger.is_member() {
            self.ask_for_those_waiting();
        }
    }
}
