//! Reports the settings in force, and the source of each value.

use crate::config::history_section::written;
use crate::config::metrics_section::Listen;
use crate::config::reading::Read;
use crate::config::written::{SPREAD, changes, name_of_key};
use crate::logging;
use crate::server::Server;
use crate::server::configuration::in_force::{Override, binds_everybody, needs_restart};
use crate::server::dispatch::step::Step;
use crate::wording::text::time;
use canal_core::BYPASS_MAX_DEFAULT;
use canal_protocol::place::Rule;
use canal_protocol::{Configuration, SettingChange, SettingInfo, SettingSource};
use canal_text::duration::stated;

impl Server {
    /// The settings in force, and how they differ from the configuration just `read`. Without
    /// `read`, only the settings that bind every user.
    pub(crate) fn show_configuration(&self, read: Option<&Read>) -> Step {
        let in_force = &self.in_force;
        let (mut pending, mut broken) = (Vec::new(), None);
        if let Some(read) = read {
            match read {
                Ok(now) => {
                    let changed = changes(&in_force.config.written, &now.written);
                    pending.extend(changed.into_iter().map(|it| SettingChange {
                        restart: needs_restart(&it.name),
                        name: it.name,
                        before: it.before,
                        now: it.now,
                    }));
                }
                Err(why) => broken = Some(why.clone()),
            }
        }
        let withheld = read.is_none();
        let mut settings = self.settings();
        settings.retain(|setting| !withheld || binds_everybody(&setting.name));
        let shown = |path: &std::path::PathBuf| path.display().to_string();
        Step::reply(&Configuration {
            file: in_force.config.path.as_ref().map(shown),
            candidates: in_force.paths.iter().map(shown).collect(),
            read: time(in_force.read_at),
            settings,
            pending,
            broken,
            withheld,
        })
    }

    fn settings(&self) -> Vec<SettingInfo> {
        let mut settings = self.settings_of_place();
        settings.extend(self.values().into_iter().map(|(name, value)| self.sourced(name, value)));
        settings.extend(self.settings_of_keys());
        for written in &self.in_force.config.written {
            if !settings.iter().any(|setting| setting.name == written.name) {
                // The packaged settings, which are in force without a file, are the defaults.
                let line = self.in_force.config.path.as_ref().map(|_| written.line);
                let source = line.map_or(SettingSource::Default, |_| SettingSource::File);
                let setting = SettingInfo::new(&written.name, &written.value, source);
                settings.push(SettingInfo { line, ..setting });
            }
        }
        settings
    }

    /// The places of the daemon's files. The configuration does not contain them.
    fn settings_of_place(&self) -> Vec<SettingInfo> {
        let place = self.runtime_dir.place();
        let (source, by) = match place.rule {
            // A client that starts the user's own daemon also names its socket.
            Rule::Given if !place.is_users_own() => {
                (SettingSource::CommandLine, Some("--socket or CANAL_SOCKET"))
            }
            Rule::Given | Rule::Shared | Rule::PerUser => (SettingSource::Default, None),
        };
        let paths = [("socket", &place.socket), ("state_directory", &place.stores().state_dir)];
        let each = paths.map(|(name, path)| SettingInfo {
            by: by.map(str::to_owned),
            ..SettingInfo::new(name, path.display().to_string(), source)
        });
        each.into()
    }

    /// The settings that have a value even if the configuration does not state one.
    fn values(&self) -> Vec<(&'static str, String)> {
        let limits = &self.limits;
        let per_user = limits.connections_per_user;
        let config = &self.in_force.config;
        let (log, _) = logging::chosen(self.in_force.overrides.verbose, config.log.as_deref());
        let mut values = vec![
            ("limits.connections", limits.connections(0).to_string()),
            (
                "limits.connections_per_user",
                per_user.map_or_else(|| "3 times what is left".to_owned(), |it| it.to_string()),
            ),
            ("limits.connection_idle", stated(limits.connection_idle)),
            ("limits.waiters_per_user", limits.waiters_per_user.to_string()),
            ("limits.leases_per_user", limits.leases_per_user.to_string()),
            ("limits.key_bytes_per_user", limits.key_bytes_per_user.to_string()),
            ("nodes.longest_ttl", stated(limits.nodes_longest_ttl)),
            ("policy.bypass_max", self.ledger.table.bypass_max().to_string()),
            ("daemon.idle_exit", limits.idle_exit.map_or_else(|| "never".to_owned(), stated)),
            ("daemon.log", log),
            ("history.keep", stated(config.history.keep)),
            ("history.max", config.history.max()),
            ("jobs.max", written(config.jobs.max_bytes)),
            (
                "metrics.listen",
                config.metrics.as_ref().map_or_else(|| "off".to_owned(), Listen::to_string),
            ),
        ];
        values.extend(self.cluster.iter().flat_map(|cluster| cluster.settings()));
        values
    }

    /// A setting and the source of its value.
    fn sourced(&self, name: &str, value: String) -> SettingInfo {
        let in_force = &self.in_force;
        let (config, overrides) = (&in_force.config, &in_force.overrides);
        let option = |given: bool, option| given.then_some(Override::CommandLine(option));
        let before = match name {
            "daemon.idle_exit" => option(overrides.idle_exit_s.is_some(), "--idle-exit"),
            "daemon.log" => match logging::chosen(overrides.verbose, config.log.as_deref()).1 {
                logging::Chosen::CommandLine => Some(Override::CommandLine("-v")),
                logging::Chosen::Environment => Some(Override::Environment("CANAL_LOG")),
                logging::Chosen::Config | logging::Chosen::Default => None,
            },
            "engine.url" => overrides.engine,
            "engine.ttl" => option(overrides.engine_ttl, "--engine-ttl"),
            "engine.host" => option(overrides.host, "--host"),
            _ => None,
        };
        let stated = config.bypass_max.unwrap_or(BYPASS_MAX_DEFAULT);
        let line = config.written.iter().find(|one| one.name == name).map(|one| one.line);
        let (source, by, line) = match (before, line) {
            (Some(Override::CommandLine(by)), _) => (SettingSource::CommandLine, Some(by), None),
            (Some(Override::Environment(by)), _) => (SettingSource::Environment, Some(by), None),
            _ if name == "policy.bypass_max" && self.ledger.table.bypass_max() != stated => {
                (SettingSource::Stored, Some("the table of all hosts"), None)
            }
            (None, Some(line)) => (SettingSource::File, None, Some(line)),
            (None, None) => (SettingSource::Default, None, None),
        };
        SettingInfo { line, by: by.map(str::to_owned), ..SettingInfo::new(name, value, source) }
    }

    /// The sizes of the keys that the configuration names. A stored size overrides the configured
    /// one.
    fn settings_of_keys(&self) -> Vec<SettingInfo> {
        let config = &self.in_force.config;
        let each = config.views.iter().map(|(key, view)| {
            let name = format!("keys.{}", name_of_key(key.as_str()));
            let spread = if config.spread.contains(key) { SPREAD } else { "" };
            let stored = self.ledger.table.stored(key);
            if stored == Some(*view) {
                let line = config.written.iter().find(|one| one.name == name).map(|one| one.line);
                let value = format!("{view}{spread}");
                return SettingInfo { line, ..SettingInfo::new(name, value, SettingSource::File) };
            }
            let value = stored.map_or_else(|| "none".to_owned(), |view| view.to_string());
            let value = value + spread;
            let by = stored.is_some().then(|| "canal resize".to_owned());
            SettingInfo { by, ..SettingInfo::new(name, value, SettingSource::Stored) }
        });
        each.collect()
    }
}
