//! The failures for clients while this host cannot serve them, and whether a person has to act.

use crate::cluster::Cluster;
use crate::cluster::engine_status::OngoingOutage;
use crate::store::ledger::Ledger;
use crate::wording::{StartError, time};
use canal_core::Table;
use canal_log::engine::Outage;
use canal_protocol::{ErrorName, Failure};
use canal_sys::clock;
use canal_text::duration::stated_ms;

impl Cluster {
    /// Adds how long the host with our name has been a member, if that is the reason.
    pub(crate) fn dated(&self, outage: Outage, table: &Table) -> Outage {
        let by = self.driver.member.label_taken_by().and_then(|id| table.host(id));
        let Some(by) = by else { return outage };
        let age = stated_ms(clock::unix_ms().saturating_sub(by.since.0));
        let why = format!("{}, a member since {} ({age})", outage.why, time(by.since));
        Outage { why, ..outage }
    }

    /// Ends a daemon that runs in the foreground, if the record of holders is empty: a person sees
    /// the error and can start the daemon again.
    pub(crate) fn end_if_seen(&self, Outage { why, hint, .. }: &Outage) -> anyhow::Result<()> {
        if self.status.lives_on || !self.holder_record.is_empty() {
            return Ok(());
        }
        let what = format!("cannot join {}: {why}", self.status.name);
        Err(match hint {
            Some(hint) => StartError { what, hint: hint.clone().into() }.into(),
            None => anyhow::Error::msg(what),
        })
    }

    /// The failure for a client whose call needs a membership that this host does not have.
    pub(crate) fn not_a_member(&self, ledger: &Ledger) -> Failure {
        let advised = |outage: &&OngoingOutage| outage.hint.is_some();
        let advised = self.status.away.as_ref().or(self.status.full.as_ref()).filter(advised);
        if let Some(OngoingOutage { why, hint, since, .. }) = self.status.refusal().or(advised) {
            let since = time(*since);
            let failure =
                away(format!("the daemon has been unable to use its engine since {since}: {why}"));
            return match hint {
                Some(hint) => failure.hint(hint.as_str()),
                None => failure,
            };
        }
        if let Some(OngoingOutage { why, since, .. }) = &self.status.away {
            let since = time(*since);
            let message =
                format!("the daemon has been unable to reach its engine since {since}: {why}");
            return away(message).hint(
                "run `canal status` to see when it is back; holds stay valid while that is safe",
            );
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
        if has_earlier_incarnation(ledger) { not_before_it_ends() } else { not_now() }
    }

    /// Whether the engine refuses this host and a person has to act, so that the daemon can serve
    /// no call. Once this host has been a member, requests that may wait keep waiting.
    pub(crate) fn is_refused(&self) -> bool {
        !self.status.let_in && self.status.refusal().is_some()
    }
}

fn away(message: impl Into<String>) -> Failure {
    Failure::new(ErrorName::EngineAway, message)
}

/// The failure for a client that calls before this host has joined.
pub(crate) fn not_yet() -> Failure {
    away("this host has not yet joined the engine's table").hint(SHOWN)
}

/// Whether the table still contains an earlier incarnation of this host.
fn has_earlier_incarnation(ledger: &Ledger) -> bool {
    let own = ledger.table.host(ledger.host).map(|it| it.label.as_str());
    ledger.table.hosts().any(|it| it.id != ledger.host && Some(it.label.as_str()) == own)
}

/// The failure for a client whose request still belongs to an earlier incarnation of this host.
fn not_before_it_ends() -> Failure {
    let message = "the daemon lost its membership in the engine and has a new one: earlier \
                   requests wait until the old membership expires";
    away(message).hint("wait for `ttl` of [engine]; run `canal status -v` to see the hosts")
}

/// The failure for a client that calls while the engine does not answer.
fn not_now() -> Failure {
    away("the engine does not answer").hint(SHOWN)
}

const SHOWN: &str = "run `canal status -v` to see the progress";
