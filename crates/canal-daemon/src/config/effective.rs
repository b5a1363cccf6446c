//! The configuration in force, the options and variables that override it, and the reading of a new
//! one.
//!
//! A thread reads the file outside of the daemon's turns, and wakes the daemon when it is done. The
//! name of a group may be in a directory service that does not answer; meanwhile the daemon serves
//! its clients.
//!
//! Invariant: at most one thread reads, however many calls wait. A call never gets a configuration
//! that was read before it asked.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};
use std::{io, thread};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::config::file::Config;
use crate::config::limits::Limits;
use crate::permissions::Permissions;
use canal_core::UnixMillis;
use canal_protocol::SettingSource;
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
    /// The settings that they override, each with its source and the option or variable.
    pub settings: BTreeMap<&'static str, (SettingSource, &'static str)>,
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
        self.limits = self.config.limits(self.limits.descriptors, self.overrides.idle_exit_s);
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

/// How long a call waits for the configuration. Clients wait 5 s for the daemon.
const READING_MAX: Duration = Duration::from_secs(4);

/// The result of reading: the configuration, or why there is none, as text for people.
pub(crate) type Read = Result<Config, String>;

/// The reason to read the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Put it in force.
    Reload,
    /// Show the settings in force and those that the file contains now.
    Show,
}

/// An order to read the configuration. The call that waits for the result keeps the order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub purpose: Purpose,
    /// The number of the first reading that begins after the order.
    reading: u64,
    /// After this time, the client learns that there is no configuration yet.
    pub until: Instant,
}

/// A configuration that was read.
#[derive(Debug)]
pub(crate) struct Done {
    /// The number of the reading.
    reading: u64,
    pub read: Read,
}

impl Done {
    /// Whether the configuration was read after this order.
    pub(crate) fn answers(&self, asked: &Asked) -> bool {
        asked.reading <= self.reading
    }
}

/// The readings of the configuration.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    under_way: Option<Reading>,
    /// How many readings have begun.
    begun: u64,
    /// A configuration to put in force although no call waits for that.
    pub reload: Option<Asked>,
    /// A configuration that was read without a thread, for all orders before it.
    ready: Option<Done>,
}

#[derive(Debug)]
struct Reading {
    result: Receiver<Read>,
    /// Kept open, because a closed descriptor never wakes the daemon that polls it.
    _bell: Arc<EventFd>,
}

/// Reads the first of the files that exists.
pub(crate) fn read(paths: &[PathBuf]) -> Read {
    Config::read_for_daemon(paths).map_err(|error| error.to_string())
}

impl Readings {
    /// An order for a reading that has not begun yet.
    pub(crate) fn ask(&self, purpose: Purpose, now: Instant) -> Asked {
        Asked { purpose, reading: self.begun + 1, until: now + READING_MAX }
    }

    /// Whether one of these orders, or one without a call, is not answered yet.
    pub(crate) fn are_awaited<'a>(&self, mut asked: impl Iterator<Item = &'a Asked>) -> bool {
        self.reload.is_some() || asked.next().is_some()
    }

    /// Whether the next reading has to begin for one of these orders.
    pub(crate) fn is_wanted<'a>(&self, mut asked: impl Iterator<Item = &'a Asked>) -> bool {
        let is_next = |asked: &Asked| asked.reading > self.begun;
        self.under_way.is_none()
            && (self.reload.as_ref().is_some_and(is_next) || asked.any(is_next))
    }

    /// Starts a thread that reads for all orders so far. Returns a descriptor that becomes readable
    /// when the reading is done.
    ///
    /// # Errors
    /// The system has no thread or no descriptor left.
    pub(crate) fn begin(&mut self, paths: Vec<PathBuf>) -> io::Result<Arc<EventFd>> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let bell = Arc::new(EventFd::from_value_and_flags(0, flags)?);
        let (say, result) = mpsc::channel();
        let done = Arc::clone(&bell);
        thread::Builder::new().name("canal-config".to_owned()).spawn(move || {
            // The receiver no longer exists if the daemon ends.
            let _ = say.send(read(&paths));
            let _ = done.write(1);
        })?;
        self.begun += 1;
        self.under_way = Some(Reading { result, _bell: Arc::clone(&bell) });
        Ok(bell)
    }

    /// Answers all orders so far with a configuration that was read just now.
    pub(crate) fn supersede(&mut self, read: Read) {
        self.ready = Some(Done { reading: self.begun + 1, read });
    }

    /// Takes a result that is ready.
    pub(crate) fn take(&mut self) -> Option<Done> {
        if let Some(done) = self.ready.take() {
            return Some(done);
        }
        let read = match self.under_way.as_ref()?.result.try_recv() {
            Ok(read) => read,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                Err("cannot read the configuration: its thread has ended".to_owned())
            }
        };
        self.under_way = None;
        Some(Done { reading: self.begun, read })
    }

    /// The latest time at which the next order without a call gets its answer.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        let ready = self.ready.as_ref().map(|_| now);
        ready.or(self.reload.map(|asked| asked.until))
    }
}

/// The error if the configuration could not be read in time.
pub(crate) fn silence() -> Read {
    let seconds = READING_MAX.as_secs();
    Err(format!(
        "cannot look up its groups within {seconds} s: the directory service does not answer \
         (`getent group NAME`)"
    ))
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

    /// A reading whose result the test supplies.
    fn under_way(readings: &mut Readings) -> mpsc::Sender<Read> {
        let (say, result) = mpsc::channel();
        let _bell = Arc::new(EventFd::new().unwrap());
        readings.begun += 1;
        readings.under_way = Some(Reading { result, _bell });
        say
    }

    #[test]
    fn who_asks_while_a_thread_reads_gets_what_is_read_afterwards() {
        let now = Instant::now();
        let mut readings = Readings::default();
        let one = readings.ask(Purpose::Show, now);
        assert!(readings.is_wanted([one].iter()));
        let say = under_way(&mut readings);
        let two = readings.ask(Purpose::Reload, now);
        assert!(!readings.is_wanted([one, two].iter()), "one at a time");
        assert!(readings.take().is_none());
        say.send(Ok(Config::default())).unwrap();
        let done = readings.take().unwrap();
        assert!(done.answers(&one) && !done.answers(&two));
        assert!(readings.is_wanted([two].iter()));
    }

    #[test]
    fn a_newer_configuration_answers_all_that_asked_before_and_no_later_one() {
        let now = Instant::now();
        let mut readings = Readings::default();
        let one = readings.ask(Purpose::Show, now);
        let say = under_way(&mut readings);
        let two = readings.ask(Purpose::Reload, now);
        readings.supersede(Ok(Config::default()));
        assert_eq!(readings.due(now), Some(now));
        let done = readings.take().unwrap();
        assert!(done.answers(&one) && done.answers(&two));
        // Its thread still reads, and no other thread is started.
        assert!(readings.take().is_none() && !readings.is_wanted([two].iter()));
        say.send(Ok(Config::default())).unwrap();
        assert!(readings.take().is_some() && readings.take().is_none());
    }
}
