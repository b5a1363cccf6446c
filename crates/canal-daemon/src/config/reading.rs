//! Reads a configuration outside of the daemon's turns, in a thread that wakes the daemon when it
//! is done. The name of a group may be in a directory service that does not answer; meanwhile the
//! daemon serves its clients.
//!
//! Invariant: at most one thread reads, however many askers there are. An asker never gets a
//! configuration that was read before it asked.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::calls::conn_id::ConnId;
use crate::config::Config;

/// How long an asker waits for the configuration. Clients wait 5 s for the daemon.
const READING_MAX: Duration = Duration::from_secs(4);

/// The result of reading: the configuration, or why there is none, as text for people.
pub(crate) type Read = Result<Config, String>;

/// The reason to read the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// Put it in force, for this client or without one.
    Reload(Option<ConnId>),
    /// Show this client the settings in force and those that the file contains now.
    Show(ConnId),
}

/// The reading that is under way, and the calls that wait for it.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    under_way: Option<Reading>,
    /// The askers since it began.
    next: Vec<Asked>,
    /// The results that are ready.
    ready: Vec<(Asker, Read)>,
}

#[derive(Debug)]
struct Reading {
    result: Receiver<Read>,
    /// If this were closed while the daemon waits for it, it would wake no one.
    _bell: Arc<EventFd>,
    askers: Vec<Asked>,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    asker: Asker,
    /// After this, the asker learns that there is no configuration yet.
    until: Instant,
}

/// Reads the first of the files that exists.
pub(crate) fn read(paths: &[PathBuf]) -> Read {
    Config::read_for_daemon(paths).map_err(|error| error.to_string())
}

impl Readings {
    /// Adds an asker, for a reading that has not begun yet.
    pub(crate) fn ask(&mut self, asker: Asker, now: Instant) {
        self.next.push(Asked { asker, until: now + READING_MAX });
    }

    /// Whether an asker waits, and no reading is under way.
    pub(crate) fn is_wanted(&self) -> bool {
        self.under_way.is_none() && !self.next.is_empty()
    }

    /// Starts a thread that reads for all askers so far. Returns a descriptor that becomes readable
    /// when it is done.
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
        let askers = std::mem::take(&mut self.next);
        self.under_way = Some(Reading { result, _bell: Arc::clone(&bell), askers });
        Ok(bell)
    }

    /// Answers all askers with a configuration that was read just now.
    pub(crate) fn supersede(&mut self, read: &Read) {
        let waiting = self.under_way.iter_mut().map(|it| &mut it.askers).chain([&mut self.next]);
        for asked in waiting.flat_map(std::mem::take) {
            self.ready.push((asked.asker, read.clone()));
        }
    }

    /// Takes the results that are ready. Drops the result of a reading that has no askers.
    pub(crate) fn take(&mut self, now: Instant) -> Vec<(Asker, Read)> {
        let mut ready = std::mem::take(&mut self.ready);
        if let Some(reading) = &mut self.under_way {
            let result = match reading.result.try_recv() {
                Ok(read) => Some(read),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => {
                    Some(Err("cannot read the configuration: its thread has ended".to_owned()))
                }
            };
            if let Some(read) = result {
                let askers = std::mem::take(&mut reading.askers);
                ready.extend(askers.into_iter().map(|it| (it.asker, read.clone())));
                self.under_way = None;
            }
        }
        let waiting = self.under_way.iter_mut().map(|it| &mut it.askers).chain([&mut self.next]);
        for list in waiting {
            let over = list.extract_if(.., |it| it.until <= now);
            ready.extend(over.map(|it| (it.asker, Err(silence()))));
        }
        ready
    }

    /// The latest time at which the next asker gets its answer.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        if !self.ready.is_empty() {
            return Some(now);
        }
        let under_way = self.under_way.iter().flat_map(|it| &it.askers);
        under_way.chain(&self.next).map(|it| it.until).min()
    }

    /// Whether a client waits for a reading.
    #[cfg(test)]
    pub(crate) fn has_client(&self, id: ConnId) -> bool {
        let under_way = self.under_way.iter().flat_map(|it| &it.askers);
        let waiting = under_way.chain(&self.next).map(|it| it.asker);
        let mut all = waiting.chain(self.ready.iter().map(|(asker, _)| *asker));
        all.any(|asker| asker == Asker::Show(id) || asker == Asker::Reload(Some(id)))
    }

    /// Notes that a client has left. A configuration that it wanted to put in force is still put in
    /// force.
    pub(crate) fn forget(&mut self, id: ConnId) {
        let stays = |asker: &mut Asker| match asker {
            Asker::Show(client) => *client != id,
            Asker::Reload(client) => {
                client.take_if(|client| *client == id);
                true
            }
        };
        if let Some(reading) = &mut self.under_way {
            reading.askers.retain_mut(|it| stays(&mut it.asker));
        }
        self.next.retain_mut(|it| stays(&mut it.asker));
        self.ready.retain_mut(|(asker, _)| stays(asker));
    }
}

/// Explains that there is no configuration in time.
fn silence() -> String {
    let seconds = READING_MAX.as_secs();
    format!(
        "cannot look up its groups within {seconds} s: the directory service does not answer \
         (`getent group NAME`)"
    )
}

#[cfg(test)]
mod tests {
    use slotmap::SlotMap;

    use super::*;

    fn ids() -> [ConnId; 2] {
        let mut map = SlotMap::with_key();
        [map.insert(()), map.insert(())]
    }

    /// A reading whose result the test supplies.
    fn under_way(readings: &mut Readings) -> mpsc::Sender<Read> {
        let (say, result) = mpsc::channel();
        let askers = std::mem::take(&mut readings.next);
        let _bell = Arc::new(EventFd::new().unwrap());
        readings.under_way = Some(Reading { result, _bell, askers });
        say
    }

    #[test]
    fn who_asks_while_a_thread_reads_gets_what_is_read_afterwards() {
        let ([one, two], now) = (ids(), Instant::now());
        let mut readings = Readings::default();
        readings.ask(Asker::Show(one), now);
        assert!(readings.is_wanted());
        let say = under_way(&mut readings);
        readings.ask(Asker::Reload(Some(two)), now);
        assert!(!readings.is_wanted(), "one at a time");
        assert!(readings.take(now).is_empty());
        say.send(Ok(Config::default())).unwrap();
        let ready = readings.take(now);
        assert_eq!(ready.len(), 1);
        assert_eq!(ready[0].0, Asker::Show(one));
        assert!(readings.is_wanted() && readings.has_client(two) && !readings.has_client(one));
    }

    #[test]
    fn nobody_waits_longer_than_a_client_does() {
        let ([one, two], now) = (ids(), Instant::now());
        let mut readings = Readings::default();
        readings.ask(Asker::Show(one), now);
        let say = under_way(&mut readings);
        readings.ask(Asker::Reload(Some(two)), now + Duration::from_secs(1));
        assert_eq!(readings.due(now), Some(now + READING_MAX));
        let ready = readings.take(now + READING_MAX);
        assert_eq!(ready.len(), 1);
        assert!(ready[0].1.as_ref().is_err_and(|why| why.contains("directory service")));
        // Its thread still reads, and no other thread is started.
        assert!(!readings.is_wanted());
        assert_eq!(readings.take(now + READING_MAX + Duration::from_secs(1)).len(), 1);
        say.send(Ok(Config::default())).unwrap();
        assert!(readings.take(now).is_empty(), "nobody waits for it");
        assert!(readings.under_way.is_none());
    }

    #[test]
    fn a_newer_configuration_answers_all_and_a_client_that_left_is_not_told() {
        let ([one, two], now) = (ids(), Instant::now());
        let mut readings = Readings::default();
        readings.ask(Asker::Show(one), now);
        readings.ask(Asker::Reload(Some(two)), now);
        let _say = under_way(&mut readings);
        readings.forget(one);
        readings.forget(two);
        assert!(!readings.has_client(one) && !readings.has_client(two));
        readings.supersede(&Ok(Config::default()));
        assert_eq!(readings.due(now), Some(now));
        let ready = readings.take(now);
        assert_eq!(ready.iter().map(|it| it.0).collect::<Vec<_>>(), [Asker::Reload(None)]);
    }
}
