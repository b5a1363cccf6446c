//! Reports the settings in force with the source of each value, and reads the configuration again
//! while the daemon runs.
//!
//! Invariant: a configuration takes effect as a whole or not at all. If the new one cannot be read,
//! the previous one stays in force.

use std::time::Instant;

use crate::config::effective::{Purpose, Read, binds_everybody, changes};
use crate::config::file::Config;
use crate::config::sections_and_defaults::Listen;
use crate::config::settings_in_file::{SPREAD, name_of_key};
use crate::config::values::written_bytes;
use crate::logging;
use crate::net::call_state::CallState;
use crate::net::connection::Connection;
use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step};
use crate::server::requests::resize::barred;
use crate::store::table_and_log::setting_bytes;
use crate::wording::time;
use canal_core::{BYPASS_MAX_DEFAULT, Change, Key, Setting};
use canal_protocol::paths::Rule;
use canal_protocol::{
    Configuration, ErrorName, Failure, Reloaded, SettingChange, SettingInfo, SettingSource,
};
use canal_sys::clock;
use canal_sys::peer::Credentials;
use canal_text::duration::{stated, stated_ms};

impl Server {
    /// The settings in force, and how they differ from the configuration just `read`. Without
    /// `read`, only the settings that bind every user.
    fn show_configuration(&self, read: Option<&Read>) -> Step {
        let effective = &self.effective;
        let (pending, broken) = match read {
            Some(Ok(now)) => (changes(&effective.config.written, &now.written), None),
            Some(Err(why)) => (Vec::new(), Some(why.clone())),
            None => (Vec::new(), None),
        };
        let mut settings = self.settings_of_place();
        settings.extend(self.values().into_iter().map(|(name, value)| self.sourced(name, value)));
        settings.extend(self.settings_of_keys());
        for written in &effective.config.written {
            if !settings.iter().any(|setting| setting.name == written.name) {
                // The packaged settings, which are in force without a file, are the defaults.
                let line = effective.config.path.as_ref().map(|_| written.line);
                let source = line.map_or(SettingSource::Default, |_| SettingSource::File);
                let setting = SettingInfo::new(&written.name, &written.value, source);
                settings.push(SettingInfo { line, ..setting });
            }
        }
        let withheld = read.is_none();
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
        let (log, ..) = logging::chosen(self.options.verbose, config.daemon.log.as_deref());
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
            ("history.keep", stated_ms(config.history.keep_ms)),
            ("history.max", written_bytes(config.history.max_bytes)),
            ("jobs.max", written_bytes(config.jobs.max_bytes)),
            ("metrics.listen", listen.unwrap_or_else(|| "off".to_owned())),
        ];
        values.extend(self.decide.settings());
        values
    }

    /// A setting and the source of its value.
    fn sourced(&self, name: &str, value: String) -> SettingInfo {
        let config = &self.effective.config;
        let stated = config.policy.bypass_max.unwrap_or(BYPASS_MAX_DEFAULT);
        let (source, by, line) = match (self.options.override_of(name), config.line(name)) {
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

    /// Reads the configuration again, for a client.
    pub(crate) fn reload(&mut self, caller: &Caller) -> Result {
        let Credentials { uid, pid, .. } = caller.peer;
        self.check_operator(uid, "change the configuration in force")?;
        tracing::info!(uid, pid, "reading the configuration again for a client");
        Ok(self.await_configuration(caller, Purpose::Reload))
    }

    /// Reports the settings in force and how the file differs now. Users other than root and the
    /// daemon's user see only the settings that bind them, because they may not be able to read the
    /// file.
    pub(crate) fn configuration(&mut self, caller: &Caller) -> Step {
        if !self.is_operator(caller.peer.uid) {
            return self.show_configuration(None);
        }
        self.await_configuration(caller, Purpose::Show)
    }

    fn await_configuration(&mut self, caller: &Caller, purpose: Purpose) -> Step {
        self.effective.readings.order(Some(caller.id), purpose, clock::now());
        Step::Wait(CallState::Configuration)
    }

    /// Reads the configuration if that was ordered, and answers the orders.
    pub(crate) fn read_configuration(&mut self, now: Instant) {
        for (order, read) in self.effective.readings.answered(now) {
            let step = match order.purpose {
                Purpose::Show => Ok(self.show_configuration(Some(&read))),
                Purpose::Reload => self.put_into_effect(read).map(|it| Step::reply(&it)),
            };
            // Without a call, the log has already reported the result.
            if let Some(id) = order.by
                && let Some(CallState::Configuration) = self.conns.peek(id).map(Connection::state)
            {
                self.carry_out(id, step);
            }
        }
    }

    fn put_into_effect(&mut self, read: Read) -> Result<Reloaded> {
        let config = read.map_err(|why| {
            tracing::warn!("keeping the configuration in force: {why}");
            Failure::new(ErrorName::BadConfiguration, why)
                .hint("the previous configuration stays in force")
        })?;
        let changed = changes(&self.effective.config.written, &config.written);
        let (resizes, notes) = self.settings_to_change(&config);
        let bytes: u64 = resizes.iter().map(|(key, _)| setting_bytes(key, 0)).sum();
        if bytes > 0 {
            self.reserve(bytes)?;
        }
        logging::follow(self.options.verbose, config.daemon.log.as_deref());
        self.effective.replace(config);
        self.observe.reconfigure(&self.effective.config.hooks);
        // The time after which an idle daemon ends starts again.
        self.due.idle = None;
        self.propose_settings(resizes);
        let file = self.effective.config.path.as_ref().map(|path| path.display().to_string());
        for SettingChange { name, before, now, restart } in &changed {
            // More people can read the log than the file.
            let shown = |value: &'_ Option<String>| match value {
                None => "not given".to_owned(),
                Some(value) if binds_everybody(name) => value.clone(),
                Some(_) => "given".to_owned(),
            };
            tracing::info!(
                before = shown(before),
                now = shown(now),
                "{name} {}",
                if *restart { "will change after a restart" } else { "changed" }
            );
        }
        notes.iter().for_each(|note| tracing::warn!("{note}"));
        Ok(Reloaded { file, changed, notes })
    }

    /// Proposes these settings, and the policy of the configuration in force.
    pub(crate) fn propose_settings(&mut self, settings: Vec<(Key, Setting)>) {
        settings.into_iter().for_each(|(key, setting)| self.propose(Change::Set { key, setting }));
        let stated = self.effective.config.policy.bypass_max;
        if let Some(change) = self.decide.change_of_policy(stated) {
            self.propose(change);
        }
    }

    /// The settings of keys that a configuration or the state file changes, and a note for each
    /// view that the configuration cannot change.
    ///
    /// With the embedded journal, a stored view comes from the configuration unless somebody stored
    /// it by hand. Over an engine, a stored view belongs to all hosts, so the configuration sets
    /// only views that are not stored yet.
    pub(crate) fn settings_to_change(&self, config: &Config) -> (Vec<(Key, Setting)>, Vec<String>) {
        let before = &self.effective.config.views;
        let (mut changed, mut notes) = (Vec::new(), Vec::new());
        if self.decide.is_shared() {
            for (key, view) in &config.views {
                match self.decide.table().settings(key).view {
                    None if self.decide.is_member() => {
                        changed.push((key.clone(), Setting::View(Some(*view))));
                    }
                    Some(stored) if stored != *view && before.get(key) != Some(view) => {
                        notes.push(format!(
                            "`{key}` keeps the size {stored}, which is stored for all hosts; \
                             change it with `canal resize {key}`"
                        ));
                    }
                    _ => {}
                }
            }
            let gone = before.keys().filter(|key| !config.views.contains_key(*key));
            let gone = gone.filter_map(|key| Some((key, self.decide.table().settings(key).view?)));
            notes.extend(gone.map(|(key, stored)| {
                format!(
                    "`{key}` keeps the size {stored}, which is stored for all hosts; forget it \
                     with `canal resize {key} --forget`"
                )
            }));
            return (changed, notes);
        }
        for (key, setting) in self.decide.ledger().settings_to_follow(config) {
            let refused = match setting {
                Setting::View(view) => self.decide.refusal_of_view(&key, view),
                _ => None,
            };
            if let Some(why) = refused.as_ref().and_then(barred) {
                notes.push(format!("the configured size of `{key}` does not apply: `{key}` {why}"));
            } else {
                changed.push((key, setting));
            }
        }
        for (key, view) in &config.views {
            let stored = self.decide.table().settings(key).view;
            let journal = self.decide.ledger().journal();
            let by_hand = journal.and_then(|kept| kept.durable.settings.get(key)?.view);
            if by_hand.is_some() && stored != Some(*view) && before.get(key) != Some(view) {
                let stored = stored.map_or_else(|| "none".to_owned(), |view| view.to_string());
                notes.push(format!(
                    "`{key}` keeps the size {stored}, which `canal resize` stored; to apply the \
                     configured size, run `canal resize {key} --forget`"
                ));
            }
        }
        (changed, notes)
    }
}
