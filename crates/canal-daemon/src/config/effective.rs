//! The configuration in force, and the options and variables that override it.

use std::path::PathBuf;

use crate::config::Config;
use crate::config::reading::Readings;
use crate::limits::Limits;
use crate::permissions::Permissions;
use canal_core::UnixMillis;
use canal_sys::clock;

/// The configuration in force.
#[derive(Debug)]
pub(crate) struct EffectiveConfig {
    /// The configuration that was read last, except that the engine, the socket, the history and
    /// the metrics are those of the start.
    pub config: Config,
    /// The places where a configuration may be; the first that exists counts.
    pub paths: Vec<PathBuf>,
    pub overrides: Overrides,
    /// When the daemon read it.
    pub read_at: UnixMillis,
    /// How many descriptors the daemon may have.
    descriptors: u64,
    pub limits: Limits,
    pub permissions: Permissions,
    /// Whether SIGHUP asked for the file to be read again. The next turn reads it.
    pub reload_asked: bool,
    /// The readings of the file, for the calls that wait for them.
    pub readings: Readings,
}

/// The overrides of the configuration: the daemon's command line and its environment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overrides {
    /// `--idle-exit`, in seconds.
    pub idle_exit_s: Option<u64>,
    /// How many times `-v` was given.
    pub verbose: u8,
    /// The option or variable that names the engine, if the configuration does not.
    pub engine: Option<Override>,
    /// Whether `--engine-ttl` was given.
    pub engine_ttl: bool,
    /// Whether `--host` was given.
    pub host: bool,
}

/// The source of a value that overrides the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Override {
    /// This option.
    CommandLine(&'static str),
    /// This variable.
    Environment(&'static str),
}

impl EffectiveConfig {
    /// Takes a configuration that was just read.
    pub(crate) fn new(
        config: Config,
        paths: Vec<PathBuf>,
        descriptors: u64,
        overrides: Overrides,
    ) -> Self {
        let read_at = UnixMillis(clock::unix_ms());
        let limits = config.limits(descriptors, overrides.idle_exit_s);
        let permissions = config.permissions(&paths);
        Self {
            config,
            paths,
            overrides,
            read_at,
            descriptors,
            limits,
            permissions,
            reload_asked: false,
            readings: Readings::default(),
        }
    }

    /// Puts another configuration in force that was just read. Engine, socket, history and metrics
    /// stay, because they need a restart.
    pub(crate) fn replace(&mut self, config: Config) {
        let before = std::mem::replace(&mut self.config, config);
        (self.config.engine, self.config.socket) = (before.engine, before.socket);
        (self.config.history, self.config.metrics) = (before.history, before.metrics);
        self.config.written.retain(|one| !needs_restart(&one.name));
        let kept = before.written.into_iter().filter(|one| needs_restart(&one.name));
        self.config.written.extend(kept);
        self.read_at = UnixMillis(clock::unix_ms());
        self.limits = self.config.limits(self.descriptors, self.overrides.idle_exit_s);
        self.permissions = self.config.permissions(&self.paths);
    }
}

/// Whether a change of this setting takes effect only after a restart.
pub(crate) fn needs_restart(name: &str) -> bool {
    ["engine.", "socket.", "history.", "metrics."].iter().any(|table| name.starts_with(table))
}

/// Whether a setting binds every user, and so is no secret: a size, a permission or a limit. Hooks
/// have tokens in their arguments; engines and nodes have addresses.
pub(crate) fn binds_everybody(name: &str) -> bool {
    let tables = ["keys.", "limits.", "permission", "policy."];
    tables.iter().any(|table| name.starts_with(table)) || name == "nodes.longest_ttl"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("canal.toml");
        std::fs::write(&path, text).unwrap();
        Config::read(&[path]).unwrap()
    }

    #[test]
    fn a_changed_configuration_leaves_the_engine_in_force() {
        let first = config("engine = \"etcd://a\"\n[limits]\nwaiters_per_user = 1\n");
        let overrides = Overrides { idle_exit_s: Some(7), ..Overrides::default() };
        let mut effective = EffectiveConfig::new(first, Vec::new(), 1024, overrides);
        effective.replace(config(
            "engine = \"etcd://b\"\n[limits]\nwaiters_per_user = 2\n[daemon]\nidle_exit = \"9s\"\n",
        ));
        assert_eq!(effective.config.engine.url.as_deref(), Some("etcd://a"));
        let limits = &effective.limits;
        assert_eq!(limits.waiters_per_user, 2);
        assert_eq!(
            limits.idle_exit.map(|it| it.as_secs()),
            Some(7),
            "the command line comes first"
        );
        let written: Vec<_> =
            effective.config.written.iter().map(|it| format!("{}={}", it.name, it.value)).collect();
        assert_eq!(
            written,
            ["daemon.idle_exit=9s", "limits.waiters_per_user=2", "engine.url=etcd://a"]
        );
    }
}
