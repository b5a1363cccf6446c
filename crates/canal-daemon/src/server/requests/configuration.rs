//! Reports the settings in force, and the source of each value.

use crate::config::effective::{Read, binds_everybody, changes};
use crate::config::sections_and_defaults::Listen;
use crate::config::settings_in_file::{SPREAD, name_of_key};
use crate::config::values::written_bytes;
use crate::logging;
use crate::server::Server;
use crate::server::call_step::Step;
use crate::wording::time;
use canal_core::BYPASS_MAX_DEFAULT;
use canal_protocol::paths::Rule;
use canal_protocol::{Configuration, SettingInfo, SettingSource};
use canal_text::duration::stated;

impl Server {
    /// The settings in force, and how they differ from the configuration just `read`. Without
    /// `read`, only the settings that bind every user.
    pub(super) fn show_configuration(&self, read: Option<&Read>) -> Step {
        let effective = &self.effective;
        let (pending, broken) = match read {
            Some(Ok(now)) => (changes(&effective.config.written, &now.written), None),
            Some(Err(why)) => (Vec::new(), Some(why.clone())),
            None => (Vec::new(), None),
        };
        let withheld = read.is_none();
        let mut settings = self.settings();
        settings.retain(|setting| !withheld || binds_everybody(&setting.name));
        let shown = |path: &std::path::PathBuf| path.display().to_string();
        Step::reply(&Configuration {
            file: effective.config.path.as_ref().map(shown),
            candidates: effective.readings.paths.iter().map(shown).collect(),
            read: time(effective.read_at),
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
        for written in &self.effective.config.written {
            if !settings.iter().any(|setting| setting.name == written.name) {
                // The packaged settings, which are in force without a file, are the defaults.
                let line = self.effective.config.path.as_ref().map(|_| written.line);
                let source = line.map_or(SettingSource::Default, |_| SettingSource::File);
                let setting = SettingInfo::new(&written.name, &written.value, source);
                settings.push(SettingInfo { line, ..setting });
            }
        }
        settings
    }

    /// The places of the daemon's files. The configuration does not contain them.
    fn settings_of_place(&self) -> Vec<SettingInfo> {
        let place = &self.options.place;
        let (source, by) = match place.rule {
            // A client that starts the user's own daemon also names its socket.
            Rule::Given if !place.is_users_own() => {
                (SettingSource::CommandLine, Some("--socket or CANAL_SOCKET"))
            }
            Rule::Given | Rule::Shared | Rule::PerUser => (SettingSource::Default, None),
        };
        let paths = [("socket", &*place.socket), ("state_directory", place.state_dir())];
        let each = paths.map(|(name, path)| SettingInfo {
            by: by.map(str::to_owned),
            ..SettingInfo::new(name, path.display().to_string(), source)
        });
        each.into()
    }

    /// The settings that have a value even if the configuration does not state one.
    fn values(&self) -> Vec<(&'static str, String)> {
        let config = &self.effective.config;
        let limits = &config.limits;
        let per_user = limits.connections_per_user.map(|it| it.to_string());
        let per_user = per_user.unwrap_or_else(|| "three times the number still free".to_owned());
        let listen = config.metrics.listen.as_ref().map(Listen::to_string);
        let idle_exit = self.effective.idle_exit(self.options.idle_exit_s);
        let idle_exit = idle_exit.map_or_else(|| "never".to_owned(), stated);
        let (log, _) = logging::chosen(self.options.verbose, config.daemon.log.as_deref());
        let mut values = vec![
            ("limits.connections", self.effective.connections(0).to_string()),
            ("limits.connections_per_user", per_user),
            ("limits.connection_idle", stated(limits.connection_idle)),
            ("limits.waiters_per_user", limits.waiters_per_user.to_string()),
            ("limits.leases_per_user", limits.leases_per_user.to_string()),
            ("limits.key_bytes_per_user", limits.key_bytes_per_user.to_string()),
            ("nodes.longest_ttl", stated(limits.nodes_longest_ttl)),
            ("policy.bypass_max", self.decide.table().globals().bypass_max.to_string()),
            ("daemon.idle_exit", idle_exit),
            ("daemon.log", log),
            ("history.keep", stated(config.history.keep)),
            ("history.max", written_bytes(config.history.max_bytes)),
            ("jobs.max", written_bytes(config.jobs.max_bytes)),
            ("metrics.listen", listen.unwrap_or_else(|| "off".to_owned())),
        ];
        values.extend(self.decide.settings());
        values
    }

    /// A setting and the source of its value.
    fn sourced(&self, name: &str, value: String) -> SettingInfo {
        let (config, options) = (&self.effective.config, &self.options);
        let by_log = match logging::chosen(options.verbose, config.daemon.log.as_deref()).1 {
            source @ SettingSource::CommandLine => Some((source, "-v")),
            source @ SettingSource::Environment => Some((source, "CANAL_LOG")),
            _ => None,
        };
        let before = options.override_of(name).or(by_log.filter(|_| name == "daemon.log"));
        let stated = config.policy.bypass_max.unwrap_or(BYPASS_MAX_DEFAULT);
        let (source, by, line) = match (before, config.line(name)) {
            (Some((source, by)), _) => (source, Some(by), None),
            _ if name == "policy.bypass_max"
                && self.decide.table().globals().bypass_max != stated =>
            {
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
        let config = &self.effective.config;
        let each = config.views.iter().map(|(key, view)| {
            let name = format!("keys.{}", name_of_key(key.as_str()));
            let spread = if config.spread.contains(key) { SPREAD } else { "" };
            let stored = self.decide.table().settings(key).view;
            let (source, line) = match stored == Some(*view) {
                true => (SettingSource::File, config.line(&name)),
                false => (SettingSource::Stored, None),
            };
            let by = stored.filter(|stored| stored != view).map(|_| "canal resize".to_owned());
            let size = stored.map_or_else(|| "none".to_owned(), |view| view.to_string());
            SettingInfo { line, by, ..SettingInfo::new(name, size + spread, source) }
        });
        each.collect()
    }
}
