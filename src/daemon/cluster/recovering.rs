//! The recovery of a table that many hosts share, as one of their daemons sees it. While it lasts,
//! requests wait here and the daemon tells no grant.
//!
//! Invariant: the daemon asks again for each request that was refused because of a recovery, once
//! the recovery is over.

use crate::core::{Change, RequestId, Table, Token};
use crate::daemon::cluster::Cluster;
use crate::daemon::server::Server;
use crate::daemon::wording::text::time;
use crate::protocol::RecoveryInfo;
use crate::sys::clock;

impl Server {
    /// Reports a change of the recovery, after an entry was applied or the table was replaced.
    /// `before` says whether a recovery was under way before that.
    pub(crate) fn follow_recovery(&mut self, before: bool) {
        let table = &self.ledger.table;
        let now = table.recovery().is_some();
        let Some(cluster) = &mut self.cluster else { return };
        cluster.driver.recovers(table);
        // Before it joins, a host reads old entries, whose recoveries ended long ago.
        if now == before || !self.ledger.is_member() {
            return;
        }
        self.due.changed = true;
        if let Some(words) = cluster.recovery_words(table) {
            tracing::warn!("{words}");
        } else {
            tracing::info!("the table has recovered: locks are granted again");
            self.ask_for_those_waiting();
        }
    }

    /// Whether a grant that no client was told yet may be told.
    pub(crate) fn may_be_told(&self, token: Token) -> bool {
        #[cfg(test)]
        if crate::sim::is_broken(crate::sim::Rule::OldGrantsAreAskedAnew) {
            return true;
        }
        self.ledger.table.may_be_told(token)
    }

    /// Takes back a grant that no client was told before history was lost, and asks for it again at
    /// the same place in the queue.
    pub(crate) fn ask_anew(&mut self, request: RequestId) {
        self.propose(Change::Suspend { request });
        self.propose(Change::Resume { request });
    }
}

impl Cluster {
    /// A message that the table recovers and what it waits for, if a recovery is under way.
    pub(super) fn recovery_words(&self, table: &Table) -> Option<String> {
        let RecoveryInfo { hosts, left_ms, .. } = self.recovery_shown(table)?;
        let hosts = match hosts.len() {
            0 => None,
            1 => Some(format!("host {} has reported or is gone", hosts[0])),
            _ => Some(format!("hosts {} have reported or are gone", hosts.join(", "))),
        };
        let left = left_ms.map(|ms| format!("{} s have passed", ms.div_ceil(1_000)));
        let until = hosts.into_iter().chain(left).collect::<Vec<_>>().join(", and ");
        let until = if until.is_empty() { "it has read on".to_owned() } else { until };
        Some(format!("the engine may have lost entries: no lock is granted until {until}"))
    }

    /// The recovery, for `canal status`.
    pub(super) fn recovery_shown(&self, table: &Table) -> Option<RecoveryInfo> {
        let recovery = table.recovery()?;
        let name = |host| table.host(host).map_or_else(|| host.to_string(), |it| it.label.clone());
        let left = self.driver.recovered_at().filter(|_| recovery.ttl_from.is_some());
        Some(RecoveryInfo {
            since: time(recovery.since),
            hosts: recovery.unheard.iter().copied().map(name).collect(),
            left_ms: left.map(|at_ms| at_ms.saturating_sub(clock::boottime_ms())),
        })
    }
}
