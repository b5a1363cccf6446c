//! Selects the engine that keeps the shared log, if any, from the command line, the environment and
//! the configuration.
//!
//! Invariant: no message made here contains a password. Only the address itself may contain a
//! password, and the daemon passes the address to the engine only.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::config::file::Config;
use crate::config::sections_and_defaults::{EngineSettings, shown_address};
use crate::membership::Settings;
use crate::options::Options;
use crate::processes::holder_record;
use crate::store::node_identity::host_name;
use crate::wording::StartError;
use canal_log::engine::{self, Engine, Identity, Inspection, OpenError, Outage, Source};
use canal_protocol::paths::Place;
use canal_sys::process::Origin;

/// The maximum length of a host name, in bytes.
const LABEL_BYTES_MAX: usize = 255;

/// The engine that the daemon uses.
pub(crate) struct Chosen {
    /// The address of the engine. It may contain a password.
    url: String,
    /// The name of the engine in messages. It contains no password.
    pub name: String,
    /// The name of this host in messages.
    pub label: String,
    pub settings: Settings,
    /// Whether the address comes from the configuration, not from the command line or the
    /// environment.
    pub configured: bool,
}

/// The result of inspecting an engine.
#[derive(Clone, Debug)]
pub struct SeenEngine {
    /// The address, without a password.
    pub name: String,
    /// The name that a daemon of this place would have among the hosts.
    pub label: String,
    /// The state of the engine.
    pub seen: Inspection,
    /// Another daemon that has this name.
    pub label_taken_by: Option<Identity>,
}

/// Inspects the engine with this address, or the one that `CANAL_ENGINE` or the configuration
/// names, without changing anything there. Waits for its answers, for a bounded time. `None` if
/// none is named.
///
/// # Errors
/// The address or the configuration cannot be used; a [`StartError`] if the user can do something
/// about it. A refusal by the engine is part of the result.
pub fn look_at(place: &Place, url: Option<&str>) -> anyhow::Result<Option<SeenEngine>> {
    let options = Options { engine: url.map(str::to_owned), ..Options::at(place.clone()) };
    let config = Config::read(&place.stores().config)?;
    let Some(chosen) = Chosen::of(&options, &config)? else { return Ok(None) };
    chosen.inspect(place, &Origin::read()?).map(Some)
}

impl Chosen {
    /// Selects the engine, if one is named. The command line takes precedence over `CANAL_ENGINE`,
    /// and `CANAL_ENGINE` over the configuration. A daemon that a client started reads the
    /// configuration only. Otherwise two clients with different environments could use two tables.
    ///
    /// # Errors
    /// The settings are wrong. The error explains how to repair them.
    pub(crate) fn of(options: &Options, config: &Config) -> anyhow::Result<Option<Self>> {
        let configured = &config.engine;
        if options.without_engine {
            if *configured == EngineSettings::default() {
                return Ok(None);
            }
            // Daemons that clients start would use that engine, so that two tables would be used
            // in turn.
            let file = config.path.as_deref().unwrap_or(Path::new("the configuration")).display();
            let what = format!("{file} names an engine, which the next daemon would use");
            return Err(unusable(&what, "remove `engine` there, then repeat --no-engine"));
        }
        if options.engine.as_deref().is_some_and(has_password) {
            return Err(unusable(
                "everyone on this machine could read a password in `--engine`",
                "put the address in CANAL_ENGINE, or in a file, and name that file as `url_file` \
                 in [engine] of the configuration",
            ));
        }
        let Some(url) = stated(options, config)? else {
            let only_with_engine = options.engine_ttl_ms.is_some() || options.host.is_some();
            if only_with_engine || *configured != EngineSettings::default() {
                return Err(unusable(
                    "a host name or a TTL needs an engine, but none is given",
                    "name the engine with --engine, CANAL_ENGINE or `url` in [engine]",
                ));
            }
            return Ok(None);
        };
        let label = options.host.as_ref().or(configured.host.as_ref()).cloned();
        let label = label.unwrap_or_else(host_name);
        if label.is_empty() || label.len() > LABEL_BYTES_MAX || label.chars().any(char::is_control)
        {
            let what = format!("`{}` is not a valid name for a host", label.escape_debug());
            return Err(unusable(&what, "give it a short one with --host"));
        }
        let defaults = Settings::default();
        let ttl_ms = options.engine_ttl_ms.or(configured.ttl_ms).unwrap_or(defaults.ttl_ms);
        let EngineSettings { renewal_ms, grace_ms, margin_ms, .. } = *configured;
        let snapshot_batches = snapshot_batches().unwrap_or(defaults.snapshot_batches);
        let settings = Settings { ttl_ms, renewal_ms, grace_ms, margin_ms, snapshot_batches };
        settings.check(ttl_ms).map_err(|error| {
            let hint = "give a longer --engine-ttl, or shorter `renewal`, `grace` and `margin` in \
                        [engine] of the configuration";
            unusable(&error, hint)
        })?;
        let configured = options.override_of("engine.url").is_none();
        Ok(Some(Self { name: shown_address(&url), url, label, settings, configured }))
    }

    /// Starts to connect.
    ///
    /// # Errors
    /// The address is invalid, its engine is unknown or not built in, or the engine's thread cannot
    /// be started.
    pub(crate) fn open(&self, options: &Options) -> anyhow::Result<Box<dyn Engine>> {
        let source = self.source(options.clone());
        engine::open(self.scheme(), source, &self.label).map_err(|error| self.not_opened(error))
    }

    fn scheme(&self) -> &str {
        self.url.split_once("://").map_or("", |(scheme, _)| scheme)
    }

    fn not_opened(&self, error: OpenError) -> anyhow::Error {
        let why = match error {
            OpenError::Address(error) => error.to_string(),
            OpenError::Thread(error) => return error.into(),
            OpenError::LeftOut(_) => return unusable(&error.to_string(), LEFT_OUT_HINT),
            OpenError::Unknown(_) => format!("`{}` does not name a known engine", self.name),
        };
        unusable(&format!("the address of the engine: {why}"), ADDRESS_HINT)
    }

    /// Inspects the engine without changing anything there.
    ///
    /// # Errors
    /// The address is invalid, its engine is unknown or not built in, or its thread cannot be
    /// started.
    fn inspect(&self, place: &Place, origin: &Origin) -> anyhow::Result<SeenEngine> {
        let seen = engine::inspect(self.scheme(), &self.url, &self.label);
        let seen = seen.map_err(|error| self.not_opened(error))?;
        let us = self.identity(place, origin);
        let is_ours = |who: &Identity| {
            let is_same = (&who.machine, who.uid, &who.dir) == (&us.machine, us.uid, &us.dir);
            is_same && (who.boot != us.boot || who.dir_number == us.dir_number)
        };
        let mut others = seen.hosts.iter().filter(|who| who.label == us.label);
        // The other hosts wait for an incarnation of this place.
        let has_it = others.clone().any(is_ours);
        let label_taken_by = others.next().filter(|_| !has_it).cloned();
        Ok(SeenEngine { name: self.name.clone(), label: us.label, seen, label_taken_by })
    }

    /// Checks, before a daemon with this engine replaces another one, that the engine admits this
    /// host, and that no other host uses our label. Changes nothing in the engine.
    ///
    /// # Errors
    /// The engine does not admit this host, or another host has the label.
    pub(crate) fn check(&self, place: &Place, origin: &Origin) -> anyhow::Result<()> {
        let SeenEngine { seen, label_taken_by, .. } = self.inspect(place, origin)?;
        let is_reached = seen.servers.iter().any(|(_, reached)| reached.is_ok());
        let unreached = seen.servers.into_iter().find_map(|(_, reached)| reached.err());
        let unreached = unreached.filter(|_| !is_reached);
        if let Some(Outage { why, hint, .. }) = unreached.or(seen.obstacles.into_iter().next()) {
            let what = format!("cannot use {}: {why}", self.name);
            let hint = hint.map_or_else(String::new, |hint| format!("{hint}; "));
            let hint = format!("{hint}the running daemon is unchanged");
            return Err(StartError { what, hint: hint.into() }.into());
        }
        let Some(Identity { uid, dir, machine, .. }) = label_taken_by else { return Ok(()) };
        let who = format!("uid {uid}, {dir}, machine {machine}");
        let what = format!("another host has the name `{}`: {who}", self.label);
        let hint = "give this host another name with --host; the running daemon is unchanged";
        Err(unusable(&what, hint))
    }

    /// Returns the function that reads the address again before each attempt to connect, from the
    /// command line, the environment and the configuration. If they cannot be read, it returns the
    /// last address: a mistake in a file that the user is editing must not cut this host off from
    /// its engine.
    fn source(&self, options: Options) -> Source {
        let (mut last, mut complaint) = (self.url.clone(), String::new());
        Box::new(move || {
            let read = Config::read(&options.place.stores().config).map_err(anyhow::Error::from);
            let problem = match read.and_then(|config| stated(&options, &config)) {
                Ok(Some(url)) => {
                    last = url;
                    String::new()
                }
                Ok(None) => "no engine is given now".to_owned(),
                Err(error) => format!("{error:#}"),
            };
            if !problem.is_empty() && problem != complaint {
                tracing::warn!("keeping the previous address of the engine: {problem}");
            }
            complaint = problem;
            last.clone()
        })
    }

    /// The identity under which a daemon at this place registers.
    pub(crate) fn identity(&self, place: &Place, origin: &Origin) -> Identity {
        let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
        let identity = Identity {
            label: self.label.clone(),
            machine: machine.trim().to_owned(),
            boot: origin.boot_id.clone(),
            pid_namespace: origin.pid_namespace,
            uid: canal_sys::process::user::geteuid().as_raw(),
            dir: place.dir.display().to_string(),
            dir_number: holder_record::dir_number(&place.dir).unwrap_or_default(),
        };
        // The log contains the identity, so the hashes of the log and the lengths of the records
        // that contain them depend on it. A seed decides all of that.
        #[cfg(test)]
        if canal_sys::kernel::simulated::current().is_some() {
            let dir = self.label.clone();
            return Identity { machine: String::new(), uid: 0, dir, ..identity };
        }
        identity
    }
}

/// The configured address, if any.
fn stated(options: &Options, config: &Config) -> anyhow::Result<Option<String>> {
    if let Some(url) = options.engine.clone().or_else(|| options.engine_variable()) {
        return Ok(Some(url));
    }
    let (EngineSettings { url, url_file, .. }, path) = (&config.engine, config.path.as_deref());
    if let Some(url) = url {
        check_readers(url, path)?;
        return Ok(Some(url.clone()));
    }
    let Some(file) = url_file else { return Ok(None) };
    // A relative path starts at the configuration's directory.
    let file = path.and_then(Path::parent).map_or_else(|| file.clone(), |dir| dir.join(file));
    let named = |error| anyhow::anyhow!("{}: {error}", file.display());
    let text = std::fs::read_to_string(&file).map_err(named)?;
    let url = text.trim();
    if url.is_empty() {
        anyhow::bail!("{} contains no address", file.display());
    }
    check_readers(url, Some(&file))?;
    Ok(Some(url.to_owned()))
}

const LEFT_OUT_HINT: &str = "build canal with the default features, which include all engines; \
                             this one was built with --no-default-features";
const ADDRESS_HINT: &str = "postgres://USER@HOST/DATABASE or etcd://HOST:2379/PREFIX";

/// The number of batches between two snapshots, if a test sets it. All hosts need the same number.
fn snapshot_batches() -> Option<u64> {
    #[cfg(test)]
    if let Some(batches) = canal_log::sim::engine::snapshot_batches() {
        return Some(batches);
    }
    let asked = std::env::var("CANAL_SNAPSHOT_BATCHES").ok().filter(|_| cfg!(debug_assertions));
    asked?.parse().ok()
}

fn unusable(what: &str, hint: &'static str) -> anyhow::Error {
    StartError { what: what.to_owned(), hint: hint.into() }.into()
}

/// Refuses a file that contains a password and that all users may read.
fn check_readers(url: &str, file: Option<&Path>) -> anyhow::Result<()> {
    let mode = file.and_then(|file| std::fs::metadata(file).ok()).map_or(0, |found| found.mode());
    if let Some(file) = file.filter(|_| has_password(url) && mode & 0o004 != 0) {
        let what = format!("{} contains a password, and everyone can read it", file.display());
        return Err(unusable(&what, "`chmod 600` it, so that only its owner can read it"));
    }
    Ok(())
}

fn has_password(url: &str) -> bool {
    // A password may contain characters that elsewhere end the authority, so the last `@` counts.
    let user = url.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@'));
    user.is_some_and(|(user, _)| user.contains(':')) || url.contains("password=")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_displayed_name_of_an_engine_holds_no_password() {
        for (url, name) in [
            (
                "postgres://canal:s3cret@db.example:5432/canal?sslmode=require",
                "postgres://db.example:5432/canal",
            ),
            ("postgres://db/canal?password=s3cret", "postgres://db/canal"),
            ("etcd://root:a@b/c@one:2379,two:2379/x", "etcd://one:2379,two:2379/x"),
            ("etcd://one", "etcd://one"),
            ("s3cret", "the engine"),
        ] {
            assert_eq!(shown_address(url), name);
            assert_eq!(
                has_password(url),
                url.contains("s3cret") && url.contains("://") || url.contains("a@b"),
                "{url}"
            );
        }
        assert!(!has_password("postgres://canal@db/canal"));
    }
}
