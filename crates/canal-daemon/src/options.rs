//! The options of a daemon.

use std::path::PathBuf;

use crate::logging;
use crate::runtime_dir::claim::Replacing;
use canal_protocol::SettingSource;
use canal_protocol::paths::Place;

/// The options of a daemon.
#[derive(Clone, Debug)]
pub struct Options {
    /// The place of its socket and files.
    pub place: Place,
    /// Whether another process started it in the background. If so, it reports readiness and
    /// start-up errors to descriptor 3.
    pub on_demand: bool,
    /// Whether to discard a journal that cannot be used, after dealing with the processes that it
    /// names.
    pub discard_journal: bool,
    /// Whether the caller states that no daemon has run here before, so that this one need not wait
    /// before it grants over nodes.
    pub first_start: bool,
    /// The number of `-v` options.
    pub verbose: u8,
    /// The daemon ends after this many seconds with nothing held, waiting or connected. `None` uses
    /// the configuration; 0 means never.
    pub idle_exit_s: Option<u64>,
    /// The address of the engine. `None` uses `CANAL_ENGINE`, then the configuration.
    pub engine: Option<String>,
    /// How long this host's membership lasts without a renewal, in milliseconds. `None` uses the
    /// configuration.
    pub engine_ttl_ms: Option<u64>,
    /// The name of this host for people. `None` uses the configuration, then the host name.
    pub host: Option<String>,
    /// Whether to work without an engine, even if one was used before.
    pub without_engine: bool,
    /// The replacement that this daemon is part of, if it replaces another daemon.
    pub replaces: Option<Replacing>,
    /// Whether the daemon is a thread of another program. Then it does not change the state of the
    /// whole process: the umask, effects of signals, limits, the log, and the service manager.
    pub embedded: bool,
    /// The program of the watcher, which is canal. The watcher outlives a daemon with an engine,
    /// and ends in time the processes that the daemon would have ended. Without it, they are not
    /// ended. It is also the program of the guards of hooks. Without it, the daemon runs no hooks.
    pub watcher: Option<PathBuf>,
}

impl Options {
    /// The option or the variable that overrides a setting of the configuration, if one does.
    pub(crate) fn override_of(&self, setting: &str) -> Option<(SettingSource, &'static str)> {
        let option = match setting {
            "daemon.idle_exit" if self.idle_exit_s.is_some() => "--idle-exit",
            "engine.url" if self.engine.is_some() => "--engine",
            "engine.url" if self.engine_variable().is_some() => {
                return Some((SettingSource::Environment, "CANAL_ENGINE"));
            }
            "daemon.log" => {
                let (_, source, by) = logging::chosen(self.verbose, None);
                return (source != SettingSource::Default).then_some((source, by));
            }
            "engine.ttl" if self.engine_ttl_ms.is_some() => "--engine-ttl",
            "engine.host" if self.host.is_some() => "--host",
            _ => return None,
        };
        Some((SettingSource::CommandLine, option))
    }

    /// The address in `CANAL_ENGINE`. A daemon that a client started ignores it.
    pub(crate) fn engine_variable(&self) -> Option<String> {
        let variable = std::env::var("CANAL_ENGINE").ok().filter(|text| !text.is_empty());
        variable.filter(|_| !self.is_on_demand())
    }

    /// The options of a daemon at this place about which nothing is stated.
    pub fn at(place: Place) -> Self {
        Self {
            place,
            on_demand: false,
            discard_journal: false,
            first_start: false,
            verbose: 0,
            idle_exit_s: None,
            engine: None,
            engine_ttl_ms: None,
            host: None,
            without_engine: false,
            replaces: None,
            embedded: false,
            watcher: None,
        }
    }

    /// Whether a client started it because it found no daemon. No operator chose its options.
    pub fn is_on_demand(&self) -> bool {
        self.on_demand && self.replaces.is_none()
    }
}
