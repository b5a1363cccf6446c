//! The watcher process itself.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};
use nix::unistd::Pid;

use crate::cluster::watcher::{CHANNEL, PAGE, TOLD_TO_END};
use crate::logging;
use crate::options::Options;
use crate::processes::descendants::Trace;
use crate::processes::holder_record::{Holder, Recorded, WatchId};
use crate::processes::identity::find;
use crate::processes::lost_processes::LostProcesses;
use canal_core::Token;
use canal_sys::deadline::Reader;
use canal_sys::process::Origin;
use canal_sys::process::child::{Reap, end_with_parent, ended, fork, leave_parent};
use canal_sys::{clock, fds, signals};

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
pub fn watch(options: &Options, start: &dyn Fn()) -> anyhow::Result<()> {
    let channel = stand_alone().context(STARTED_BY)?;
    let log_file = options.on_demand.then(|| options.place.dir.join("daemon.log"));
    logging::begin(options.verbose, None, log_file.as_deref())?;
    let (duty, told_to_end) = until_the_daemon_ends(&channel).context(STARTED_BY)?;
    let Some(duty) = duty else { return Ok(()) };
    // A service manager or a person restarts a daemon in the foreground.
    let is_to_start = options.on_demand && !told_to_end;
    let starter = is_to_start.then(|| Starter::new(start, &duty));
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
            Ok(0) => return Ok((duty, told_to_end)),
            Ok(_) if word[0] == TOLD_TO_END => told_to_end = true,
            Ok(_) if word[0] == PAGE && received.len() == 2 => {
                let (line, page) = (received.remove(1), received.remove(0));
                let [_, id @ ..] = word;
                let id = WatchId(u64::from_ne_bytes(id));
                let page = Reader::open(page, line)?;
                duty = Some(Duty::new(id, page));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The daemon ended before it had read everything.
            Err(error) if error.raw_os_error() == Some(Errno::ECONNRESET as i32) => {
                return Ok((duty, told_to_end));
            }
            Err(error) => return Err(error),
        }
    }
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
        self.read_record();
        self.end_those_due()
    }

    fn until_nothing_is_left(mut self, mut starter: Option<Starter<'_>>) {
        self.read_record();
        if !self.recorded.is_empty() {
            let then =
                if starter.is_some() { "starting another one" } else { "not starting another one" };
            let locks = self.recorded.len();
            tracing::warn!(locks, "the daemon ended while locks are held; {then}");
        }
        while !self.look() {
            if let Some(starter) = &mut starter {
                starter.start_if_due();
            }
            self.sleep(starter.as_ref().map(|starter| starter.next));
        }
    }

    fn read_record(&mut self) {
        match Recorded::for_watcher(&self.dir, &self.origin, self.duty.id) {
            // If another daemon has taken the processes over, that daemon is responsible for them.
            Ok(recorded) => self.recorded = recorded.unwrap_or_default(),
            // A service manager may have removed the file together with the directory of its
            // service.
            Err(error) => tracing::debug!(%error, "cannot read the record of owners"),
        }
    }

    /// Ends the processes that are due. Returns whether nothing remains to be done.
    fn end_those_due(&mut self) -> bool {
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
        self.recorded.keys().all(|token| self.over.contains(token))
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

/// Starts daemons. Each start runs in its own process, because it may take long.
struct Starter<'a> {
    start: &'a dyn Fn(),
    next: Instant,
    pause: Duration,
    /// The process of the current start, and a pipe that closes when the watcher ends.
    process: Option<(Pid, OwnedFd)>,
}

impl<'a> Starter<'a> {
    fn new(start: &'a dyn Fn(), duty: &Duty) -> Self {
        let is_young = duty.since.elapsed() < LIVED_MIN;
        let wait = if is_young { (duty.left() / 8).min(YOUNG_PAUSE) } else { Duration::ZERO };
        Self { start, next: Instant::now() + wait, pause: START_PAUSE, process: None }
    }

    fn start_if_due(&mut self) {
        if let Some((pid, _)) = &self.process {
            if matches!(ended(*pid, Reap::Now), Ok(None)) {
                return;
            }
            self.process = None;
        }
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + self.pause;
        self.pause *= 2;
        match self.fork_starter() {
            Ok(process) => self.process = Some(process),
            Err(error) => tracing::warn!(%error, "cannot start a daemon"),
        }
    }

    fn fork_starter(&self) -> io::Result<(Pid, OwnedFd)> {
        let (its, ours) = fds::pipe()?;
        if let Some(pid) = fork()? {
            return Ok((pid, ours));
        }
        drop(ours);
        if end_with_parent(its.as_fd()).is_ok() {
            (self.start)();
        }
        std::process::exit(0);
    }
}
