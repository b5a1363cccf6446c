//! The state of this host's membership, for `canal status` and metrics.

use crate::cluster::Cluster;
use crate::cluster::engine_status::OngoingOutage;
use crate::host::Standing;
use crate::metrics::counters::EngineFigures;
use crate::store::ledger::Ledger;
use crate::wording::time;
use canal_core::{Table, UnixMillis};
use canal_protocol::{EngineInfo, HostInfo, RecoveryInfo};
use canal_sys::clock;

impl Cluster {
    /// Whether the table may be out of date, because this host receives no changes of other hosts
    /// from the engine.
    pub(crate) fn is_stale(&self) -> bool {
        self.status.away.is_some() || self.status.unable.is_some()
    }

    /// The counters and measurements of the engine.
    pub(crate) fn figures(&self, is_member: bool) -> EngineFigures {
        let ongoing = self.status.away.as_ref().map(|away| away.since_boot_ms);
        let ongoing_ms = ongoing.map_or(0, |since| clock::boottime_ms().saturating_sub(since));
        EngineFigures {
            is_away: self.status.away.is_some(),
            is_member,
            away_ms: self.status.away_ms.saturating_add(ongoing_ms),
            appends: self.status.appends.clone(),
        }
    }

    /// The engine and this host's membership, for clients.
    pub(crate) fn shown(&self, ledger: &Ledger) -> EngineInfo {
        let (link, health, member) =
            (&self.status, self.driver.member.health(), ledger.is_member());
        let trouble = link.away.as_ref().or(link.unable.as_ref());
        let (state, why, hint) = match trouble {
            Some(OngoingOutage { why, hint, refused: true, .. }) => {
                ("unable", Some(why.clone()), hint.clone())
            }
            Some(OngoingOutage { why, hint, .. }) => ("away", Some(why.clone()), hint.clone()),
            None if member => {
                let full = link.full.as_ref();
                let hint = full.and_then(|full| full.hint.clone());
                ("member", full.map(|full| full.why.clone()), hint)
            }
            None => ("joining", self.what_for(&health.standing), None),
        };
        let stops = member.then(|| at(self.driver.member.deadlines().term_at));
        EngineInfo {
            name: link.name.clone(),
            state: state.to_owned(),
            host: link.label.clone(),
            id: member.then_some(ledger.host.0),
            ttl_ms: link.ttl_ms,
            renewed: health.renewed_ms.map(at),
            stops,
            away_since: trouble.map(|away| time(away.since)),
            why,
            hint,
            recovery: self.recovery_shown(&ledger.table),
        }
    }

    /// The event that this host waits for before it joins.
    fn what_for(&self, standing: &Standing) -> Option<String> {
        let what = match standing {
            Standing::Registering => "requesting a membership".to_owned(),
            Standing::Reading => "reading the log".to_owned(),
            Standing::LabelInUse { by } => format!(
                "another host (number {}) has the name `{}`; waiting until it answers or is gone",
                by.0, self.status.label
            ),
            Standing::Clearing => return self.terminator.awaited_words(),
            Standing::Joining | Standing::Member => {
                "waiting for its own join to appear in the log".to_owned()
            }
            Standing::Idle => return None,
        };
        Some(what)
    }

    /// All hosts of the table.
    pub(crate) fn hosts_shown(&self, ledger: &Ledger) -> Vec<HostInfo> {
        let health = self.driver.member.health();
        let renewed = |id| {
            let own = health.renewed_ms.filter(|_| id == ledger.host);
            own.or_else(|| health.heard.get(&id).copied())
        };
        let hosts = ledger.table.hosts().map(|host| HostInfo {
            host: host.label.clone(),
            id: host.id.0,
            since: time(host.since),
            renewed: renewed(host.id).map(at),
            here: host.id == ledger.host,
        });
        hosts.collect()
    }
}

/// Converts milliseconds of CLOCK_BOOTTIME to a wall clock time, by the machine's current clock.
fn at(boot_ms: u64) -> String {
    let (now, boot_now) = (clock::unix_ms(), clock::boottime_ms());
    time(UnixMillis(now.saturating_add(boot_ms).saturating_sub(boot_now)))
}

/// Describes the recovery of a table that hosts share.
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
    fn recovery_shown(&self, table: &Table) -> Option<RecoveryInfo> {
        let recovery = table.recovery()?;
        let name = |host| table.host(host).map_or_else(|| host.to_string(), |it| it.label.clone());
        let left = self.driver.member.recovered_at().filter(|_| recovery.ttl_from.is_some());
        Some(RecoveryInfo {
            since: time(recovery.since),
            hosts: recovery.unheard.iter().copied().map(name).collect(),
            left_ms: left.map(|at_ms| at_ms.saturating_sub(clock::boottime_ms())),
        })
    }
}
