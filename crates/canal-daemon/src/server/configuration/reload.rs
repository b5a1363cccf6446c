//! Reads the configuration again while the daemon runs.
//!
//! Invariant: a configuration takes effect as a whole or not at all. If the new one cannot be read,
//! the previous one stays in force.

use crate::calls::conn_id::ConnId;
use crate::config::Config;
use crate::config::reading::{self, Asker, Read};
use crate::config::written::changes;
use crate::logging;
use crate::net::call_state::CallState;
use crate::permissions::only_operators;
use crate::server::Server;
use crate::server::configuration::in_force::{binds_everybody, needs_restart};
use crate::server::dispatch::step::Step;
use crate::store::disk_full::disk_full;
use crate::wording::refusal::used_as;
use canal_core::{BYPASS_MAX_DEFAULT, Change, Key, View};
use canal_protocol::{ErrorName, Failure, Reloaded, SettingChange};
use canal_sys::clock;
use canal_sys::peer::Credentials;

impl Server {
    /// Reads the configuration again, for a client.
    pub(crate) fn reload(&mut self, id: ConnId, peer: Credentials) -> Result<Step, Failure> {
        let owner = self.about.uid;
        if !self.is_operator(peer.uid) {
            let message = format!("uid {} may not change the configuration in force", peer.uid);
            return Err(
                Failure::new(ErrorName::Denied, message).hint(only_operators(owner) + " may")
            );
        }
        tracing::info!(
            uid = peer.uid,
            pid = peer.pid,
            "reading the configuration again for a client"
        );
        match self.read_configuration(Asker::Reload(Some(id))) {
            Some(read) => self.put_in_force(read).map(|reloaded| Step::reply(&reloaded)),
            None => Ok(Step::Wait(CallState::Configuration)),
        }
    }

    /// Reads the configuration again if SIGHUP asked for that.
    pub(crate) fn reload_if_asked(&mut self) {
        if std::mem::take(&mut self.in_force.reload_asked) {
            tracing::info!("reading the configuration again on SIGHUP");
            if let Some(read) = self.read_configuration(Asker::Reload(None)) {
                // The log already reports the result.
                let _ = self.put_in_force(read);
            }
        }
    }

    /// Reports the settings in force and how the file differs now. Users other than root and the
    /// daemon's user see only the settings that bind them, because they may not be able to read the
    /// file.
    pub(crate) fn configuration(&mut self, id: ConnId, peer: Credentials) -> Step {
        if !self.is_operator(peer.uid) {
            return self.show_configuration(None);
        }
        match self.read_configuration(Asker::Show(id)) {
            Some(read) => self.show_configuration(Some(&read)),
            None => Step::Wait(CallState::Configuration),
        }
    }

    /// Reads the configuration. Returns `None` if a thread reads it, because names of groups have
    /// to be looked up; [`Self::configuration_read`] then continues.
    pub(crate) fn read_configuration(&mut self, asker: Asker) -> Option<Read> {
        if !Config::looks_up_groups(&self.in_force.paths) {
            let read = reading::read(&self.in_force.paths);
            self.in_force.readings.supersede(&read);
            return Some(read);
        }
        self.in_force.readings.ask(asker, clock::now());
        self.begin_reading();
        None
    }

    /// Starts a thread that reads the configuration, if a client waits for that and no thread reads
    /// yet.
    fn begin_reading(&mut self) {
        let readings = &mut self.in_force.readings;
        if !readings.is_wanted() {
            return;
        }
        let begun = readings.begin(self.in_force.paths.clone());
        if let Err(error) = begun.and_then(|bell| self.conns.wake_for(&*bell)) {
            let why = format!("cannot read the configuration: {error}");
            self.in_force.readings.supersede(&Err(why));
        }
    }

    /// The next steps of the calls whose configuration was read, or was not read in time.
    pub(crate) fn configuration_read(&mut self) -> Vec<(ConnId, Result<Step, Failure>)> {
        let mut steps = Vec::new();
        for (asker, read) in self.in_force.readings.take(clock::now()) {
            match asker {
                Asker::Reload(client) => {
                    let step = self.put_in_force(read).map(|reloaded| Step::reply(&reloaded));
                    steps.extend(client.map(|id| (id, step)));
                }
                Asker::Show(id) => steps.push((id, Ok(self.show_configuration(Some(&read))))),
            }
        }
        self.begin_reading();
        steps
    }

    fn put_in_force(&mut self, read: Read) -> Result<Reloaded, Failure> {
        let config = read.map_err(|why| {
            tracing::warn!("keeping the configuration in force: {why}");
            Failure::new(ErrorName::BadConfiguration, why)
                .hint("the previous configuration stays in force")
        })?;
        let changed = changes(&self.in_force.config.written, &config.written);
        let mut notes = Vec::new();
        let resizes = self.views_to_change(&config, &mut notes);
        let keys = resizes.iter().map(|(key, _)| key);
        self.ledger.admit_views(keys).map_err(|error| disk_full(&error))?;
        logging::follow(self.in_force.overrides.verbose, config.log.as_deref());
        self.in_force.replace(config);
        self.limits = self.in_force.limits();
        self.permissions = self.in_force.permissions();
        self.follow_hooks(false);
        // The time after which an idle daemon ends starts again.
        self.due.idle = None;
        for (key, view) in resizes {
            self.propose(Change::Resize { key, view });
        }
        self.follow_policy();
        let file = self.in_force.config.path.as_ref().map(|path| path.display().to_string());
        let changed: Vec<SettingChange> = changed
            .into_iter()
            .map(|it| SettingChange {
                restart: needs_restart(&it.name),
                name: it.name,
                before: it.before,
                now: it.now,
            })
            .collect();
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
                if *restart { "will change at a restart" } else { "changed" }
            );
        }
        for note in &notes {
            tracing::warn!("{note}");
        }
        Ok(Reloaded { file, changed, notes })
    }

    /// The views of keys that a configuration changes. Adds a note to `notes` for each view that it
    /// cannot change.
    ///
    /// With the embedded journal, a stored view comes from the configuration unless somebody stored
    /// it by hand. Over an engine, a stored view belongs to all hosts, so the configuration sets
    /// only views that are not stored yet.
    fn views_to_change(
        &self,
        config: &Config,
        notes: &mut Vec<String>,
    ) -> Vec<(Key, Option<View>)> {
        let before = self.limits.views();
        let mut changed = Vec::new();
        if self.cluster.is_some() {
            for (key, view) in &config.views {
                match self.ledger.table.stored(key) {
                    None if self.ledger.is_member() => changed.push((key.clone(), Some(*view))),
                    Some(stored) if stored != *view && before.get(key) != Some(view) => {
                        notes.push(format!(
                            "`{key}` keeps the size {stored}, which is stored for all hosts; \
                             `canal resize {key}` changes it"
                        ));
                    }
                    _ => {}
                }
            }
            let gone = before.keys().filter(|key| !config.views.contains_key(*key));
            let gone = gone.filter_map(|key| Some((key, self.ledger.table.stored(key)?)));
            notes.extend(gone.map(|(key, stored)| {
                format!(
                    "`{key}` keeps the size {stored}, which is stored for all hosts; \
                     `canal resize {key} --forget` forgets it"
                )
            }));
            return changed;
        }
        for (key, view) in self.ledger.views_to_follow(config) {
            if let Some(in_use) = self.ledger.table.bars_view(&key, view) {
                notes.push(format!(
                    "the configured size of `{key}` does not apply: `{key}` {}",
                    used_as(in_use)
                ));
            } else if self.ledger.table.majority_bars_view(&key, view) {
                notes.push(format!(
                    "the configured size of `{key}` does not apply: a majority of nodes grants it, \
                     which excludes others only while it has one slot"
                ));
            } else {
                changed.push((key, view));
            }
        }
        for (key, view) in &config.views {
            let stored = self.ledger.table.stored(key);
            let is_by_hand = self.ledger.is_stored_by_hand(key);
            if is_by_hand && stored != Some(*view) && before.get(key) != Some(view) {
                let stored = stored.map_or_else(|| "none".to_owned(), |view| view.to_string());
                notes.push(format!(
                    "`{key}` keeps the size {stored}, which `canal resize` stored; `canal resize \
                     {key} --forget` applies that of the configuration"
                ));
            }
        }
        changed
    }

    /// Changes the policy of the table to that of the configuration. Over an engine, does so only
    /// if no host has stated another one.
    fn follow_policy(&mut self) {
        let stated = self.in_force.config.bypass_max;
        let bypass_max = stated.unwrap_or(BYPASS_MAX_DEFAULT);
        let present = self.ledger.table.bypass_max();
        if let Some(cluster) = &mut self.cluster {
            cluster.set_bypass_max(stated);
            if !self.ledger.is_member() || present != BYPASS_MAX_DEFAULT {
                return;
            }
        }
        if present != bypass_max {
            self.propose(Change::Policy { bypass_max });
        }
    }
}
