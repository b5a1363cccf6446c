//! What is known of the engine besides its log.

use crate::core::UnixMillis;
use crate::daemon::cluster::engine::Chosen;
use crate::daemon::cluster::engine_mark::EngineMark;
use crate::daemon::cluster::told_tokens::ToldTokens;
use crate::daemon::cluster::watcher::Watcher;
use crate::daemon::config::Config;
use crate::host::Deadlines;
use crate::log::engine::Outage;
use crate::sys::clock;

/// Why the engine is of no use or this host can take no part, and since when.
#[derive(Clone, Debug)]
pub(crate) struct OngoingOutage {
    pub(crate) why: String,
    pub(crate) hint: Option<String>,
    /// Whether somebody has to do something about it.
    pub(crate) refused: bool,
    pub(crate) since: UnixMillis,
}

impl OngoingOutage {
    /// Since the trouble before it, if there was one: what is wrong first may hide what is wrong
    /// next.
    pub(crate) fn new(outage: Outage, before: Option<&Self>) -> Self {
        let since = before.map_or_else(|| UnixMillis(clock::unix_ms()), |before| before.since);
        let Outage { why, hint, refused } = outage;
        Self { why, hint, refused, since }
    }
}

/// What is known of the engine besides its log.
#[derive(Debug, Default)]
pub(crate) struct EngineStatus {
    /// What people know the engine by: never a password.
    pub(crate) name: String,
    /// What people know this host by.
    pub(crate) label: String,
    /// The time to live that was asked for, in milliseconds.
    pub(crate) ttl_ms: u64,
    /// What the configuration says of how often a waiter may be overtaken.
    pub(crate) bypass_max: Option<u32>,
    /// Whether to stay, and say so, if it refuses this host: of no use in the foreground before
    /// anything was held, where somebody looks.
    pub(crate) lives_on: bool,
    /// Whether this host was a member under this daemon.
    pub(crate) let_in: bool,
    /// Which tokens were told here.
    pub(crate) tokens: Option<ToldTokens>,
    /// Why the engine is of no use now.
    pub(crate) away: Option<OngoingOutage>,
    /// Why this host can take no part now, though the engine answers.
    pub(crate) unable: Option<OngoingOutage>,
    /// What the deadline page says.
    pub(crate) published: Deadlines,
    /// The note for later daemons that this place works over an engine.
    pub(crate) mark: Option<EngineMark>,
    /// When this daemon began, in milliseconds of CLOCK_BOOTTIME.
    pub(crate) began_ms: u64,
    /// What outlives this daemon.
    pub(crate) watcher: Watcher,
}

impl EngineStatus {
    pub(crate) fn new(chosen: &Chosen, config: &Config, on_demand: bool) -> Self {
        Self {
            lives_on: on_demand,
            name: chosen.name.clone(),
            label: chosen.label.clone(),
            ttl_ms: chosen.settings.ttl_ms,
            bypass_max: config.bypass_max,
            began_ms: clock::boottime_ms(),
            ..Self::default()
        }
    }

    /// What somebody has to do something about, if that is why this host takes no part.
    pub(crate) fn refusal(&self) -> Option<&OngoingOutage> {
        self.away.as_ref().or(self.unable.as_ref()).filter(|away| away.refused)
    }
}
