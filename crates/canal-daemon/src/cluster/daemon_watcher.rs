//! The watcher: a process that outlives a daemon with an engine.
//!
//! Only the daemon ends the owners of `canal acquire --pid`, and the commands of a killed `canal
//! run`, in time. So a member keeps one watcher process, which starts the next daemon when this one
//! has ended. If no daemon takes the holds over before the deadline, the watcher ends the recorded
//! processes itself.
//!
//! A watcher does not replace a daemon that is stopped: to notice one, it would have to wake at
//! each renewal.
//!
//! Invariant: while the record contains the id of a watcher ([`WatchId`]) and a process, this
//! watcher runs, unless it was killed or could not be started. The daemon then starts another one.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};

use crate::logging;
use crate::net::all_connections::{Conns, Source};
use crate::options::Options;
use crate::processes::find_descendants::Trace;
use crate::processes::holder_record::{Holder, HolderRecord, Recorded, WatchId};
use crate::processes::identify_owner::find;
use crate::processes::lost_processes::LostProcesses;
use crate::timers::is_due;
use canal_core::Token;
use canal_protocol::paths::Rule;
use canal_sys::deadline_page::{Reader, Writer};
use canal_sys::kernel::random;
use canal_sys::process::Origin;
use canal_sys::process::child::leave_parent;
use canal_sys::{clock, fds, signals};

/// The descriptor of the watcher's end of the channel to the daemon.
const CHANNEL: RawFd = 0;

/// Message: the deadline page of the daemon's membership. Its two descriptors come with the
/// message, and the eight bytes of the [`WatchId`] follow.
const PAGE: u8 = b'p';

/// Message: the daemon ends on purpose, so the watcher must not start another daemon.
const TOLD_TO_END: u8 = b'e';

/// The minimum time between two starts of a watcher.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The watcher of a daemon, on the daemon's side.
#[derive(Debug, Default)]
pub(crate) struct Watcher {
    /// The program of the watcher, and its arguments. `None` if this daemon has no watcher.
    program: Option<(PathBuf, Vec<OsString>)>,
    /// The holds that the watcher is responsible for at present.
    duty: WatchId,
    running: Option<Running>,
    /// Watchers that were killed, until they are reaped.
    ended: Vec<Child>,
    /// When to start another watcher.
    pub due: Option<Instant>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    channel: OwnedFd,
    since: Instant,
}

impl Watcher {
    /// The watcher for a daemon with these options.
    pub(crate) fn of(options: &Options) -> Self {
        let Options { place, on_demand, verbose, .. } = options;
        let program = options.watcher.as_ref().map(|file| {
            let mut arguments: Vec<OsString> = vec!["daemon".into()];
            // This option comes first, so that a process that also serves other clients can
            // recognize the watcher by it.
            arguments.extend(on_demand.then(|| "--on-demand".into()));
            arguments.push("--watcher".into());
            if place.rule != Rule::Shared {
                arguments.extend(["--socket".into(), place.socket.clone().into()]);
            }
            arguments.extend((0..*verbose).map(|_| "-v".into()));
            (file.clone(), arguments)
        });
        Self { program, ..Self::default() }
    }

    /// Tells the watcher that the daemon ends on purpose.
    pub(crate) fn say_farewell(&self) {
        if let Some(running) = &self.running {
            let _ = fds::send(running.channel.as_fd(), &[TOLD_TO_END], &[], libc::MSG_DONTWAIT);
        }
    }

    /// Hands the holds of a new membership over to a watcher.
    pub(super) fn begin(&mut self, record: &mut HolderRecord, page: &Writer, conns: &Conns) {
        #[cfg(test)]
        if canal_sys::kernel::simulated::current().is_some() {
            // In the simulation, the simulator is the watcher of all daemons.
            let _ = record.hand_over_to(WatchId::default());
        }
        if self.program.is_none() {
            return;
        }
        match random::u64() {
            Ok(id) => self.duty = WatchId(id),
            Err(error) => return tracing::error!(%error, "cannot create an id for the watcher"),
        }
        self.keep(page, conns);
        // If the watcher can be started, it runs before this line: the watcher of the previous
        // daemon ends as soon as it reads the new id. It must read that id in any case: without it,
        // it would end the commands at its own deadline, which this daemon no longer renews.
        if let Err(error) = record.hand_over_to(self.duty) {
            tracing::error!(%error, "cannot record the watcher");
        }
    }

    fn keep(&mut self, page: &Writer, conns: &Conns) {
        if let Err(error) = self.answer_for(page, conns) {
            tracing::error!(%error, "cannot start a watcher; trying again");
            self.dismiss();
            self.due = Some(clock::now() + AGAIN_AFTER);
        }
    }

    /// Starts another watcher in place of one that has ended.
    pub(super) fn look_after(&mut self, page: Option<&Writer>, conns: &mut Conns, now: Instant) {
        if conns.reported.remove(&Source::WATCHER)
            && let Some(Running { child, since, .. }) = &self.running
        {
            tracing::warn!(pid = child.id(), "the watcher has ended; starting another one");
            self.due = Some(now.max(*since + AGAIN_AFTER));
            self.dismiss();
        }
        if is_due(&mut self.due, now) {
            self.reap();
            page.into_iter().for_each(|page| self.keep(page, conns));
        }
    }

    /// Makes a watcher responsible for the holds of this page. Starts a watcher if none runs.
    fn answer_for(&mut self, page: &Writer, conns: &Conns) -> io::Result<()> {
        let Some((file, arguments)) = &self.program else { return Ok(()) };
        if self.running.is_none() {
            let (channel, its) =
                socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
            let mut command = Command::new(file);
            command.arg0("canal").args(arguments).stdin(its).stdout(Stdio::null());
            let running = Running { child: command.spawn()?, channel, since: clock::now() };
            conns.await_source(Source::WATCHER, &self.running.insert(running).channel)?;
        }
        let Some(Running { channel, .. }) = &self.running else { return Ok(()) };
        let word = [&[PAGE][..], &self.duty.0.to_ne_bytes()].concat();
        let descriptors = page.reader.descriptors();
        fds::send(channel.as_fd(), &word, &descriptors, libc::MSG_DONTWAIT).map(drop)
    }

    /// Kills the watcher, which has ended or does not read its channel.
    fn dismiss(&mut self) {
        if let Some(Running { mut child, .. }) = self.running.take() {
            let _ = child.kill();
            self.ended.push(child);
            self.reap();
        }
    }

    fn reap(&mut self) {
        self.ended.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }
}

// The rest of this file runs in the watcher process.

/// After the daemon has ended, how often the watcher checks whether another daemon has taken its
/// place. The interval shrinks as the deadline comes closer.
const LOOK_MIN: Duration = Duration::from_millis(250);
const LOOK_MAX: Duration = Duration::from_secs(5);

/// If the daemon was a member for less than this, the cause of its end may end the next daemon,
/// too.
const LIVED_MIN: Duration = Duration::from_secs(10);

/// The maximum wait before the watcher starts the next daemon after such a short life.
const YOUNG_PAUSE: Duration = Duration::from_secs(5);

/// How long the watcher waits after a start before it starts a daemon again. Doubles each time.
const START_PAUSE: Duration = Duration::from_secs(1);

const STARTED_BY: &str = "only a daemon can start a watcher";

/// The holds that a watcher is responsible for.
pub(crate) struct Duty {
    id: WatchId,
    page: Reader,
    since: Instant,
}

impl Duty {
    pub(crate) fn new(id: WatchId, page: Reader) -> Self {
        Self { id, page, since: clock::now() }
    }

    /// How long commands may still run without a daemon.
    fn left(&self) -> Duration {
        let term_at = self.page.state().deadline.term_at;
        Duration::from_millis(term_at.saturating_sub(clock::boottime_ms()))
    }
}

/// Sleeps until the daemon with these options has ended. Then takes responsibility for the
/// processes that received a grant from the daemon. `start` starts a daemon unless one runs.
///
/// # Errors
/// The caller is not a child of a daemon, or the system has no resources left.
pub fn watch(options: &Options, start: impl Fn() + Send + Sync + 'static) -> anyhow::Result<()> {
    let channel = stand_alone().context(STARTED_BY)?;
    let log_file = options.on_demand.then(|| options.place.dir.join("daemon.log"));
    logging::begin(options.verbose, None, log_file.as_deref())?;
    let (duty, told_to_end) = until_the_daemon_ends(&channel).context(STARTED_BY)?;
    let Some(duty) = duty else { return Ok(()) };
    // A service manager or a person restarts a daemon in the foreground.
    let is_to_start = options.on_demand && !told_to_end;
    let starter = is_to_start.then(|| Starter::new(Arc::new(start), &duty));
    Alone::new(&options.place.dir, Origin::read()?, duty).until_nothing_is_left(starter);
    Ok(())
}

/// Drops everything inherited from the daemon, except for the channel to it and standard error.
fn stand_alone() -> io::Result<OwnedFd> {
    let channel = leave_parent(CHANNEL)?;
    SigSet::empty().thread_set_mask()?;
    signals::set_default(Signal::SIGCHLD)?;
    signals::set_ignored(Signal::SIGHUP)?;
    signals::set_ignored(Signal::SIGINT)?;
    Ok(channel)
}

/// Waits until the daemon ends. Returns the last duty that the daemon assigned, and whether the
/// daemon ended on purpose.
fn until_the_daemon_ends(channel: &OwnedFd) -> io::Result<(Option<Duty>, bool)> {
    let (mut duty, mut told_to_end) = (None, false);
    loop {
        let mut word = [0; 9];
        let mut received = Vec::new();
        match fds::receive(channel.as_fd(), &mut word, &mut received, 0) {
            Ok(0) => break,
            Ok(_) if word[0] == TOLD_TO_END => told_to_end = true,
            Ok(_) if word[0] == PAGE && received.len() == 2 => {
                let (line, page) = (received.remove(1), received.remove(0));
                let [_, id @ ..] = word;
                let id = WatchId(u64::from_ne_bytes(id));
                duty = Some(Duty::new(id, Reader::open(page, line)?));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The daemon ended before it had read everything.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
            Err(error) => return Err(error),
        }
    }
    Ok((duty, told_to_end))
}

/// A watcher whose daemon has ended.
pub(crate) struct Alone {
    /// The directory of the daemon's files.
    dir: PathBuf,
    origin: Origin,
    duty: Duty,
    /// The processes that the watcher is responsible for.
    recorded: BTreeMap<Token, Holder>,
    lost_processes: LostProcesses,
    /// The tokens whose processes no longer have to be ended.
    over: BTreeSet<Token>,
}

impl Alone {
    pub(crate) fn new(dir: &Path, origin: Origin, duty: Duty) -> Self {
        Self {
            dir: dir.to_owned(),
            origin,
            duty,
            recorded: BTreeMap::new(),
            lost_processes: LostProcesses::default(),
            over: BTreeSet::new(),
        }
    }

    /// Ends the processes that are due now. Returns whether nothing remains to be done.
    pub(crate) fn look(&mut self) -> bool {
        let is_read = self.read_record();
        let (now, state) = (clock::boottime_ms(), self.duty.page.state());
        if state.is_over(now) {
            let kill_at = state.lost.map_or(state.deadline.kill_at, |lost| lost.at);
            let left = self.recorded.iter().filter(|(token, _)| !self.over.contains(token));
            for (token, told) in left {
                let trace = told.tag.map(|tag| Trace::of(tag, &self.dir));
                self.lost_processes.add((*token, *told), (None, trace), kill_at);
            }
        }
        self.over.extend(self.lost_processes.look(now, |_, _| None, find));
        is_read && self.recorded.keys().all(|token| self.over.contains(token))
    }

    fn until_nothing_is_left(mut self, mut starter: Option<Starter>) {
        self.read_record();
        if !self.recorded.is_empty() {
            let not = if starter.is_some() { "" } else { "not " };
            let locks = self.recorded.len();
            let what = "the daemon ended while locks are held";
            tracing::warn!(locks, "{what}; {not}starting another one");
        }
        while !self.look() {
            if let Some(starter) = &mut starter {
                starter.start_if_due();
            }
            self.sleep(starter.as_ref().map(|starter| starter.next));
        }
    }

    /// Returns whether there is nothing more to read now.
    fn read_record(&mut self) -> bool {
        match Recorded::for_watcher(&self.dir, &self.origin, self.duty.id) {
            // If another daemon has taken the processes over, that daemon is responsible for them.
            Ok(recorded) => self.recorded = recorded.unwrap_or_default(),
            Err(error) => {
                tracing::debug!(%error, "cannot read the record of owners");
                // A service manager may have removed the file together with the directory of its
                // service. Other errors may pass: the system is out of descriptors or memory.
                use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
                return matches!(error.kind(), NotFound | NotADirectory | PermissionDenied);
            }
        }
        true
    }

    /// Sleeps until there may be something to do. `start` is when to start a daemon.
    fn sleep(&self, start: Option<Instant>) {
        let (now, left) = (clock::boottime_ms(), self.duty.left());
        let look = self.lost_processes.next_look(now);
        let look = look.map(|at| Duration::from_millis(at.saturating_sub(now)));
        let start = start.map(|at| at.saturating_duration_since(Instant::now()));
        // Times in the past have been handled already.
        let ahead = [Some(left), start].into_iter().flatten().filter(|left| !left.is_zero());
        let usual = (left / 64).clamp(LOOK_MIN, LOOK_MAX);
        let time = TimeSpec::from(ahead.chain(look).fold(usual, Duration::min));
        // Unlike other sleeps, a sleep on CLOCK_BOOTTIME also counts the time of a suspend. A
        // signal may end it early.
        let _ = clock_nanosleep(ClockId::CLOCK_BOOTTIME, ClockNanosleepFlags::empty(), &time);
    }
}

/// Starts daemons. Each start runs in its own thread, because it may take long.
struct Starter {
    start: Arc<dyn Fn() + Send + Sync>,
    next: Instant,
    pause: Duration,
    /// The current start.
    thread: Option<JoinHandle<()>>,
}

impl Starter {
    fn new(start: Arc<dyn Fn() + Send + Sync>, duty: &Duty) -> Self {
        let is_young = duty.since.elapsed() < LIVED_MIN;
        let wait = if is_young { (duty.left() / 8).min(YOUNG_PAUSE) } else { Duration::ZERO };
        Self { start, next: Instant::now() + wait, pause: START_PAUSE, thread: None }
    }

    fn start_if_due(&mut self) {
        let now = Instant::now();
        if now < self.next || self.thread.as_ref().is_some_and(|it| !it.is_finished()) {
            return;
        }
        self.next = now + self.pause;
        self.pause *= 2;
        let start = Arc::clone(&self.start);
        match thread::Builder::new().name("start".to_owned()).spawn(move || start()) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => tracing::warn!(%error, "cannot start a daemon"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canal_sys::deadline_page::Deadline;

    #[test]
    fn a_record_that_cannot_be_read_now_is_read_later() {
        let dir = tempfile::tempdir().unwrap();
        let page = Writer::create(1, "engine", "host", Deadline::default()).unwrap();
        let descriptors = page.reader.descriptors().map(|fd| fd.try_clone_to_owned().unwrap());
        let [page, line] = descriptors;
        let duty = Duty::new(WatchId(1), Reader::open(page, line).unwrap());
        let mut alone = Alone::new(dir.path(), Origin::read().unwrap(), duty);
        let record = dir.path().join("owners");
        std::fs::create_dir(&record).unwrap();
        assert!(!alone.look(), "a directory cannot be read as a file");
        std::fs::remove_dir(&record).unwrap();
        assert!(alone.look(), "there is no record");
    }
}
