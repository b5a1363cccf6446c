//! Reads the configuration again while the daemon runs, and puts it in force.
//!
//! Invariant: a configuration takes effect as a whole or not at all. If the new one cannot be read,
//! the previous one stays in force.

use std::time::Instant;

use crate::config::effective::{Purpose, Read, binds_everybody, changes};
use crate::config::file::Config;
use crate::logging;
use crate::net::call_state::CallState;
use crate::net::connection::Connection;
use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step};
use crate::server::requests::resize::barred;
use crate::store::table_and_log::setting_bytes;
use canal_core::{Change, Key, Setting};
use canal_protocol::{ErrorName, Failure, Reloaded, SettingChange};
use canal_sys::clock;
use canal_sys::peer::Credentials;

impl Server {
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
        let mut notes = Vec::new();
        let resizes = self.settings_to_change(&config, &mut notes);
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
        for note in &notes {
            tracing::warn!("{note}");
        }
        Ok(Reloaded { file, changed, notes })
    }

    /// Proposes these settings, and the policy of the configuration in force.
    pub(crate) fn propose_settings(&mut self, settings: Vec<(Key, Setting)>) {
        for (key, setting) in settings {
            self.propose(Change::Set { key, setting });
        }
        let stated = self.effective.config.policy.bypass_max;
        if let Some(change) = self.decide.change_of_policy(stated) {
            self.propose(change);
        }
    }

    /// The settings of keys that a configuration or the state file changes. Adds a note to `notes`
    /// for each view that the configuration cannot change.
    ///
    /// With the embedded journal, a stored view comes from the configuration unless somebody stored
    /// it by hand. Over an engine, a stored view belongs to all hosts, so the configuration sets
    /// only views that are not stored yet.
    pub(crate) fn settings_to_change(
        &self,
        config: &Config,
        notes: &mut Vec<String>,
    ) -> Vec<(Key, Setting)> {
        let before = &self.effective.config.views;
        let mut changed = Vec::new();
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
            return changed;
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
            let is_by_hand = self.decide.ledger().is_stored_by_hand(key);
            if is_by_hand && stored != Some(*view) && before.get(key) != Some(view) {
                let stored = stored.map_or_else(|| "none".to_owned(), |view| view.to_string());
                notes.push(format!(
                    "`{key}` keeps the size {stored}, which `canal resize` stored; to apply the \
                     configured size, run `canal resize {key} --forget`"
                ));
            }
        }
        changed
    }
}
