//! Describes the recovery of a table that hosts share.

use crate::cluster::Cluster;
use crate::wording::text::time;
use canal_core::Table;
use canal_protocol::RecoveryInfo;
use canal_sys::clock;

impl Cluster {
    /// A message about the recovery and the hosts that it waits for, if a recovery is under way.
    pub(crate) fn recovery_words(&self, table: &Table) -> Option<String> {
        let RecoveryInfo { hosts, left_ms, .. } = self.recovery_shown(table)?;
        let hosts = match hosts.len() {
            0 => None,
            1 => Some(format!("host {} has reported or is gone", hosts[0])),
            _ => Some(format!("hosts {} have reported or are gone", hosts.join(", "))),
        };
        let left = left_ms.map(|ms| format!("{} s have passed", ms.div_ceil(1_000)));
        let until = hosts.into_iter().chain(left).collect::<Vec<_>>().join(", and ");
        let until =
            if until.is_empty() { "it has read the rest of the log".to_owned() } else { until };
        Some(format!("the engine may have lost entries, so no locks are granted until {until}"))
    }

    /// The recovery, for `canal status`.
    pub(crate) fn recovery_shown(&self, table: &Table) -> Option<RecoveryInfo> {
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
