//! The daemon's knowledge about the engine, except for its log.

use std::time::Duration;

use crate::cluster::engine::Chosen;
use crate::metrics::counters::{APPENDS, Histogram};
use canal_core::UnixMillis;
use canal_log::engine::Outage;
use canal_sys::clock;

/// Why the engine cannot be used or this host cannot take part, and since when.
#[derive(Clone, Debug)]
pub(crate) struct OngoingOutage {
    pub why: String,
    pub hint: Option<String>,
    /// Whether this lasts until a person acts.
    pub refused: bool,
    pub since: UnixMillis,
    /// As `since`, in milliseconds of CLOCK_BOOTTIME.
    pub since_boot_ms: u64,
}

impl OngoingOutage {
    /// Records an outage. During an outage the record keeps the start time, because the first
    /// problem may hide the next one.
    pub(crate) fn record(ongoing: &mut Option<Self>, outage: Outage) {
        let now = || (UnixMillis(clock::unix_ms()), clock::boottime_ms());
        let (since, since_boot_ms) =
            ongoing.as_ref().map_or_else(now, |before| (before.since, before.since_boot_ms));
        let Outage { why, hint, refused } = outage;
        *ongoing = Some(Self { why, hint, refused, since, since_boot_ms });
    }
}

/// The daemon's knowledge about the engine, except for its log.
#[derive(Debug, Default)]
pub(crate) struct EngineStatus {
    /// The name of the engine in messages. It contains no password.
    pub name: String,
    /// The name of this host in messages.
    pub label: String,
    /// The configured time to live, in milliseconds.
    pub ttl_ms: u64,
    /// Whether the daemon keeps running if the engine refuses this host. If not, the daemon ends
    /// with an error: it runs in the foreground, a person sees the error, and nothing was held yet.
    pub lives_on: bool,
    /// Whether this host was a member while this daemon ran.
    pub let_in: bool,
    /// Why the engine cannot be used now.
    pub away: Option<OngoingOutage>,
    /// The total length of earlier outages of the engine, in milliseconds.
    pub away_ms: u64,
    /// How long changes of this host took to come back from the log.
    pub appends: Histogram,
    /// Why this host cannot take part now although the engine answers.
    pub unable: Option<OngoingOutage>,
    /// Why the engine stores nothing now although it answers.
    pub full: Option<OngoingOutage>,
    /// When this daemon started, in milliseconds of CLOCK_BOOTTIME.
    pub began_ms: u64,
}

impl EngineStatus {
    pub(crate) fn new(chosen: &Chosen, on_demand: bool) -> Self {
        Self {
            lives_on: on_demand,
            name: chosen.name.clone(),
            label: chosen.label.clone(),
            ttl_ms: chosen.settings.ttl_ms,
            began_ms: clock::boottime_ms(),
            ..Self::default()
        }
    }

    /// Notes that the engine can be used again.
    pub(crate) fn note_back(&mut self) {
        if let Some(away) = self.away.take() {
            let was_away = clock::boottime_ms().saturating_sub(away.since_boot_ms);
            self.away_ms = self.away_ms.saturating_add(was_away);
        }
    }

    /// Records how long a change took to come back from the log.
    pub(crate) fn count_append(&mut self, took: Duration) {
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.appends.add(&APPENDS, took_us);
    }

    /// Why this host cannot take part, if that lasts until a person acts.
    pub(crate) fn refusal(&self) -> Option<&OngoingOutage> {
        self.away.as_ref().or(self.unable.as_ref()).filter(|away| away.refused)
    }
}
