//! The state of this host's membership: for `canal status` and metrics, and in the failures for
//! clients that this host cannot serve.

use crate::cluster::member_and_engine::Cluster;
use crate::membership::{Member, OngoingOutage, Standing};
use crate::metrics::counters::EngineFigures;
use crate::store::table_and_log::Ledger;
use crate::wording::{StartError, time};
use canal_core::{HostId, HostState, Table, UnixMillis};
use canal_log::engine::Outage;
use canal_protocol::{EngineInfo, ErrorName, Failure, HostInfo, RecoveryInfo};
use canal_sys::clock;
use canal_text::duration::stated_ms;

impl Cluster {
    /// Whether the table may be out of date, because this host receives no changes of other hosts
    /// from the engine.
    pub(crate) fn is_stale(&self) -> bool {
        self.member.outage.is_some() || self.member.obstacle.is_some()
    }

    /// The counters and measurements of the engine.
    pub(crate) fn figures(&self, is_member: bool) -> EngineFigures {
        let Member { outage, away_ms, .. } = &self.member;
        let since_ms = |it: &OngoingOutage| clock::boottime_ms().saturating_sub(it.since.boot_ms);
        EngineFigures {
            is_away: outage.is_some(),
            is_member,
            away_ms: away_ms.saturating_add(outage.as_ref().map_or(0, since_ms)),
            appends: self.appends.clone(),
        }
    }

    /// The engine and this host's membership, for clients.
    pub(crate) fn shown(&self, ledger: &Ledger) -> EngineInfo {
        let (member, trouble) = (ledger.is_member(), self.trouble(&ledger.table));
        let state = match &trouble {
            Some(it) if it.outage.refused => "unable",
            Some(_) => "away",
            None if member => "member",
            None => "joining",
        };
        let away_since = trouble.as_ref().map(|it| time(it.since.unix));
        let known = trouble.or(self.member.full.clone().filter(|_| member));
        let (why, hint) = match known.map(|it| it.outage) {
            Some(Outage { why, hint, .. }) => (Some(why), hint),
            None if member => (None, None),
            None => (self.what_for(), None),
        };
        let stops = member.then(|| at(self.member.deadline.term_at));
        EngineInfo {
            name: self.name.clone(),
            state: state.to_owned(),
            host: self.member.identity.label.clone(),
            id: member.then_some(ledger.host.0),
            ttl_ms: self.member.settings.ttl_ms,
            renewed: self.member.renewed_ms().map(at),
            stops,
            away_since,
            why,
            hint,
            recovery: self.recovery_shown(&ledger.table),
        }
    }

    /// Why this host cannot read the log, or cannot take part.
    fn trouble(&self, table: &Table) -> Option<OngoingOutage> {
        let obstacle = self.member.obstacle.clone();
        let date = |it: OngoingOutage| OngoingOutage { outage: self.dated(it.outage, table), ..it };
        self.member.outage.clone().or_else(|| obstacle.map(date))
    }

    /// The event that this host waits for before it joins.
    fn what_for(&self) -> Option<String> {
        let what = match self.member.standing {
            Standing::Registering => "requesting a membership",
            Standing::Reading => "reading the log",
            Standing::LabelInUse { by: HostId(by) } => {
                let label = &self.member.identity.label;
                let until = "waiting until it answers or is gone";
                return Some(format!("another host (number {by}) has the name `{label}`; {until}"));
            }
            Standing::Clearing => return self.terminator.awaited_words(),
            Standing::Joining | Standing::Member => "waiting for its own join to appear in the log",
            Standing::Idle => return None,
        };
        Some(what.to_owned())
    }

    /// All hosts of the table.
    pub(crate) fn hosts_shown(&self, ledger: &Ledger) -> Vec<HostInfo> {
        let renewed = |id| {
            let own = self.member.renewed_ms().filter(|_| id == ledger.host);
            own.or_else(|| self.member.heard_ms(id))
        };
        let hosts = ledger.table.globals().hosts.values().map(|host| HostInfo {
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
    time(UnixMillis(clock::unix_of(boot_ms)))
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
        let end = hosts.into_iter().chain(left).collect::<Vec<_>>().join(", and ");
        let end = if end.is_empty() { "it has read the rest of the log".to_owned() } else { end };
        Some(format!("the engine may have lost entries, so no locks are granted until {end}"))
    }

    /// The recovery, for `canal status`.
    fn recovery_shown(&self, table: &Table) -> Option<RecoveryInfo> {
        let recovery = table.recovery()?;
        let name = |host| table.host(host).map_or_else(|| host.to_string(), |it| it.label.clone());
        let left = self.member.recovered_at().filter(|_| recovery.ttl_from.is_some());
        Some(RecoveryInfo {
            since: time(recovery.since),
            hosts: recovery.unheard.iter().copied().map(name).collect(),
            left_ms: left.map(|at_ms| at_ms.saturating_sub(clock::boottime_ms())),
        })
    }

    // The failures for clients, and whether a person has to act.

    /// Adds how long the host with our name has been a member, if that is the reason.
    pub(crate) fn dated(&self, outage: Outage, table: &Table) -> Outage {
        let by = self.member.label_taken_by.and_then(|id| table.host(id));
        let Some(by) = by else { return outage };
        let age = stated_ms(clock::unix_ms().saturating_sub(by.since.0));
        let why = format!("{}, a member since {} ({age})", outage.why, time(by.since));
        Outage { why, ..outage }
    }

    /// Ends a daemon that runs in the foreground, if the record of holders is empty: a person sees
    /// the error and can start the daemon again.
    pub(crate) fn end_if_seen(&self, Outage { why, hint, .. }: &Outage) -> anyhow::Result<()> {
        if self.on_demand || self.let_in || !self.terminator.record.each().is_empty() {
            return Ok(());
        }
        let what = format!("cannot join {}: {why}", self.name);
        Err(match hint {
            Some(hint) => StartError { what, hint: hint.clone().into() }.into(),
            None => anyhow::Error::msg(what),
        })
    }

    /// The failure for a client whose call needs a membership that this host does not have.
    pub(crate) fn not_a_member(&self, ledger: &Ledger) -> Failure {
        let Member { outage, full, .. } = &self.member;
        let refusal = self.trouble(&ledger.table).filter(|it| it.outage.refused);
        let advised = outage.as_ref().or(full.as_ref()).filter(|it| it.outage.hint.is_some());
        let unable = |to, it: &OngoingOutage| {
            let (since, why) = (time(it.since.unix), &it.outage.why);
            away(format!("the daemon has been unable to {to} its engine since {since}: {why}"))
        };
        if let Some(it) = refusal.as_ref().or(advised) {
            let hint = it.outage.hint.clone().map(Into::into);
            return Failure { hint, ..unable("use", it) };
        }
        if let Some(it) = outage {
            let hint =
                "run `canal status` to see when it is back; holds stay valid while that is safe";
            return unable("reach", it).hint(hint);
        }
        if let Some(message) = self.terminator.awaited_words() {
            return away(message)
                .hint("end them; this host requests no locks while they are running");
        }
        if let Some(message) = self.recovery_words(&ledger.table) {
            return away(message)
                .hint("run `canal status` to see how long that takes; holds stay valid");
        }
        if !ledger.is_member() {
            return not_yet();
        }
        // The table may still contain an earlier incarnation of this host.
        let own = ledger.table.host(ledger.host).map(|it| it.label.as_str());
        let is_earlier = |it: &HostState| it.id != ledger.host && Some(it.label.as_str()) == own;
        if ledger.table.globals().hosts.values().any(is_earlier) {
            return away(
                "the daemon lost its membership in the engine and has a new one: earlier requests \
                 wait until the old membership expires",
            )
            .hint("wait for `ttl` of [engine]; run `canal status -v` to see the hosts");
        }
        away("the engine does not answer").hint(SHOWN)
    }

    /// Whether the engine refuses this host and a person has to act, so that the daemon can serve
    /// no call. Once this host has been a member, requests that may wait keep waiting.
    pub(crate) fn is_refused(&self) -> bool {
        let trouble = self.member.outage.as_ref().or(self.member.obstacle.as_ref());
        !self.let_in && trouble.is_some_and(|it| it.outage.refused)
    }
}

fn away(message: impl Into<String>) -> Failure {
    Failure::new(ErrorName::EngineAway, message)
}

/// The failure for a client that calls before this host has joined.
pub(crate) fn not_yet() -> Failure {
    away("this host has not yet joined the engine's table").hint(SHOWN)
}

const SHOWN: &str = "run `canal status -v` to see the progress";
