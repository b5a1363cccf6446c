//! The recovery of a table that many hosts share, as one of their daemons sees it. While it lasts,
//! requests wait here and the daemon sends no grant.
//!
//! Invariant: once a recovery is over, the daemon asks again for each request that was refused
//! because of it.

use crate::server::Server;

impl Server {
    /// Reports a change of the recovery, after an entry was applied or the table was replaced.
    /// `before`: whether a recovery was under way before that.
    pub(crate) fn follow_recovery(&mut self, before: bool) {
        let table = &self.ledger.table;
        let now = table.recovery().is_some();
        let Some(cluster) = &mut self.cluster else { return };
        cluster.recovers(table);
        // Before it joins, a host reads old entries whose recoveries ended long ago.
        if now == before || !self.ledger.is_member() {
            return;
        }
        self.due.changed = true;
        if let Some(words) = cluster.recovery_words(table) {
            tracing::warn!("{words}");
        } else {
            tracing::info!("the table has recovered; granting locks again");
            self.ask_for_those_waiting();
        }
    }
}
