//! The configuration in force, and the reading of a new one.
//!
//! A thread looks up the names of groups outside of the daemon's turns, and wakes the daemon when
//! it is done. They may be in a directory service that does not answer; meanwhile the daemon serves
//! its clients.
//!
//! Invariant: at most one thread reads, however many calls wait. A call never gets a configuration
//! that was read before it asked.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use crate::calls::call::ConnId;
use crate::config::file::Config;
use crate::config::settings_in_file::Written;
use canal_core::UnixMillis;
use canal_protocol::SettingChange;
use canal_sys::clock;

/// The configuration in force.
#[derive(Debug)]
pub(crate) struct EffectiveConfig {
    /// The configuration that was read last, except that the engine, the socket, the history and
    /// the metrics are those of the start.
    pub config: Config,
    /// When the daemon read it.
    pub read_at: UnixMillis,
    /// The maximum number of open descriptors.
    descriptors: u64,
    /// The readings of the file, for the calls that wait for them.
    pub readings: Readings,
}

impl EffectiveConfig {
    /// Takes a configuration that was just read.
    pub(crate) fn new(config: Config, paths: Vec<PathBuf>, descriptors: u64) -> Self {
        let read_at = UnixMillis(clock::unix_ms());
        let readings = Readings { paths, ..Readings::default() };
        Self { config, read_at, descriptors, readings }
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
    }

    /// The maximum number of connections while `owners` descriptors belong to owners.
    pub(crate) fn connections(&self, owners: usize) -> usize {
        self.config.limits.connections(self.descriptors, owners)
    }

    /// The daemon ends after this time without work. `None` means never. `stated_s` is the time
    /// that the command line states, in seconds.
    pub(crate) fn idle_exit(&self, stated_s: Option<u64>) -> Option<Duration> {
        let stated = stated_s.map(Duration::from_secs);
        stated.or(self.config.daemon.idle_exit).filter(|time| !time.is_zero())
    }

    /// The file that contains the settings, or the file in which the user would write them.
    pub(crate) fn file(&self) -> &Path {
        let path = self.config.path.as_ref().or(self.readings.paths.first());
        path.map_or(Path::new(""), PathBuf::as_path)
    }
}

/// Whether a change of this setting takes effect only after a restart.
pub(crate) fn needs_restart(name: &str) -> bool {
    ["engine.", "socket.", "history.", "metrics."].iter().any(|table| name.starts_with(table))
}

/// The settings that differ between two configurations, in the order of their names.
pub(crate) fn changes(before: &[Written], now: &[Written]) -> Vec<SettingChange> {
    let in_one = |all: &[Written], name: &str| {
        all.iter().find(|one| one.name == name).map(|one| one.value.clone())
    };
    let mut names: Vec<&String> = before.iter().chain(now).map(|one| &one.name).collect();
    names.sort();
    names.dedup();
    let each = names.into_iter().map(|name| SettingChange {
        restart: needs_restart(name),
        name: name.clone(),
        before: in_one(before, name),
        now: in_one(now, name),
    });
    each.filter(|change| change.before != change.now).collect()
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

/// An order to read the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    /// The connection whose call waits for the result. The order stands even if that is closed.
    pub by: Option<ConnId>,
    pub purpose: Purpose,
    /// Whether it names no group, so that the daemon can read it at once.
    is_quick: bool,
    /// The number of the first reading that begins after the order.
    reading: u64,
    /// After this time, the client learns that there is no configuration yet.
    until: Instant,
}

/// The readings of the configuration.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    /// The places where a configuration may be; the first that exists counts.
    pub paths: Vec<PathBuf>,
    /// The result of the thread that reads, if one does.
    under_way: Option<Receiver<Read>>,
    /// How many readings have begun.
    begun: u64,
    /// The orders that are not answered yet.
    orders: Vec<Order>,
    /// Wakes the daemon when a reading is done.
    pub waker: Option<Waker>,
}

/// Reads the first of the files that exists.
fn read(paths: &[PathBuf]) -> Read {
    Config::read_for_daemon(paths).map_err(|error| error.to_string())
}

impl Readings {
    /// Orders a reading that has not begun yet.
    pub(crate) fn order(&mut self, by: Option<ConnId>, purpose: Purpose, now: Instant) {
        let (reading, until) = (self.begun + 1, now + READING_MAX);
        let is_quick = !Config::looks_up_groups(&self.paths);
        self.orders.push(Order { by, purpose, is_quick, reading, until });
    }

    /// When the next order has waited too long.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.orders.iter().map(|order| order.until).min()
    }

    /// Takes the orders that were answered, or not in time, each with its answer. Begins the next
    /// reading if an order needs one.
    pub(crate) fn answered(&mut self, now: Instant) -> Vec<(Order, Read)> {
        let (result, mut answered) = (self.take(), Vec::new());
        if self.orders.is_empty() {
            return answered;
        }
        if let Some(result) = result {
            answered.extend(self.answer(&result, |order, begun| order.reading <= begun));
        }
        let silence = Err(format!(
            "cannot look up its groups within {} s: the directory service does not answer \
             (`getent group NAME`)",
            READING_MAX.as_secs()
        ));
        answered.extend(self.answer(&silence, |order, _| order.until <= now));
        if self.orders.iter().any(|order| order.is_quick) {
            // An older reading must not replace this one.
            answered.extend(self.answer(&read(&self.paths), |_, _| true));
        }
        if self.under_way.is_none()
            && self.orders.iter().any(|order| order.reading > self.begun)
            && let Err(error) = self.begin()
        {
            let why = format!("cannot read the configuration: {error}");
            answered.extend(self.answer(&Err(why), |_, _| true));
        }
        answered
    }

    fn answer(&mut self, read: &Read, is_due: impl Fn(&Order, u64) -> bool) -> Vec<(Order, Read)> {
        let due = self.orders.extract_if(.., |order| is_due(order, self.begun));
        due.map(|order| (order, read.clone())).collect()
    }

    /// Starts a thread that reads the first of the files that exists, for all orders so far.
    ///
    /// # Errors
    /// The system has no thread left.
    fn begin(&mut self) -> io::Result<()> {
        let (say, result) = mpsc::channel();
        let (paths, waker) = (self.paths.clone(), self.waker.clone());
        thread::Builder::new().name("canal-config".to_owned()).spawn(move || {
            // The receiver no longer exists if the daemon ends.
            let _ = say.send(read(&paths));
            waker.inspect(Waker::wake_by_ref);
        })?;
        self.begun += 1;
        self.under_way = Some(result);
        Ok(())
    }

    /// Takes a result that is ready.
    fn take(&mut self) -> Option<Read> {
        let read = match self.under_way.as_ref()?.try_recv() {
            Ok(read) => read,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                Err("cannot read the configuration: its thread has ended".to_owned())
            }
        };
        self.under_way = None;
        Some(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings_in_file::written;

    fn config(text: &str) -> Config {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("canal.toml");
        std::fs::write(&path, text).unwrap();
        Config::read(&[path]).unwrap()
    }

    #[test]
    fn a_changed_configuration_leaves_the_engine_in_force() {
        let first = config("engine = \"etcd://a\"\n[limits]\nwaiters_per_user = 1\n");
        let mut effective = EffectiveConfig::new(first, Vec::new(), 1024);
        effective.replace(config(
            "engine = \"etcd://b\"\n[limits]\nwaiters_per_user = 2\n[daemon]\nidle_exit = \"9s\"\n",
        ));
        assert_eq!(effective.config.engine.url.as_deref(), Some("etcd://a"));
        assert_eq!(effective.config.limits.waiters_per_user, 2);
        let idle_exit = effective.idle_exit(Some(7)).map(|it| it.as_secs());
        assert_eq!(idle_exit, Some(7), "the command line comes first");
        assert_eq!(effective.idle_exit(Some(0)), None);
        let written: Vec<_> =
            effective.config.written.iter().map(|it| format!("{}={}", it.name, it.value)).collect();
        assert_eq!(
            written,
            ["daemon.idle_exit=9s", "limits.waiters_per_user=2", "engine.url=etcd://a"]
        );
    }

    #[test]
    fn the_file_that_permissions_name_is_the_one_read_or_the_first_candidate() {
        let file = |config: Config| {
            let paths = vec!["/etc/canal/canal.toml".into()];
            EffectiveConfig::new(config, paths, 1024).file().to_owned()
        };
        assert_eq!(file(Config::default()), Path::new("/etc/canal/canal.toml"));
        let read = config("");
        let path = read.path.clone().unwrap();
        assert_eq!(file(read), path);
    }

    #[test]
    fn who_asks_while_a_thread_reads_gets_what_is_read_afterwards() {
        let now = Instant::now();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("canal.toml");
        let groups = "[[permission]]\ngroups = [\"root\"]\nmay = [\"hold\"]\n";
        std::fs::write(&path, groups).unwrap();
        let mut readings = Readings { paths: vec![path], ..Readings::default() };
        readings.order(None, Purpose::Show, now);
        // A reading whose result the test supplies.
        let (say, result) = mpsc::channel();
        (readings.begun, readings.under_way) = (1, Some(result));
        readings.order(None, Purpose::Reload, now);
        assert!(readings.answered(now).is_empty());
        assert_eq!(readings.begun, 1, "one at a time");
        say.send(Ok(Config::default())).unwrap();
        let answered = readings.answered(now);
        let answered: Vec<Purpose> = answered.iter().map(|(order, _)| order.purpose).collect();
        assert_eq!(answered, [Purpose::Show]);
        assert_eq!(readings.begun, 2, "a reading for the second");
    }

    #[test]
    fn only_what_is_stated_differently_is_a_change() {
        let before =
            written("[limits]\nconnections = 1\nwaiters_per_user = 2\n[keys.a]\nslots = 1\n");
        let now =
            written("[keys.a]\nslots = 2\n\n\n[limits]\nconnections = 1\nleases_per_user = 3\n");
        let found: Vec<_> = changes(&before, &now)
            .into_iter()
            .map(|it| (it.name, it.before.unwrap_or_default(), it.now.unwrap_or_default()))
            .collect();
        let change = |name: &str, before: &str, now: &str| {
            (name.to_owned(), before.to_owned(), now.to_owned())
        };
        assert_eq!(
            found,
            [
                change("keys.a", "1", "2"),
                change("limits.leases_per_user", "", "3"),
                change("limits.waiters_per_user", "2", ""),
            ]
        );
        assert_eq!(changes(&before, &before), []);
    }
}
