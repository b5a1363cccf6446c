//! The thread of a hook runs its program for one event at a time. The other events wait.
//!
//! Invariants: the number of waiting events is bounded, for each user and in total. Users take
//! turns, so that one user's flood of events does not delay another's. Each user's events are taken
//! at a bounded rate. Dropped events are counted.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::config::sections::HookSettings;
use crate::hooks::event::{About, Event};
use crate::hooks::guard::{Job, Outcome};
use crate::wording::time;
use canal_core::UnixMillis;
use canal_sys::clock;
use canal_text::duration::milliseconds;

/// How long after the timeout of the program its guard is killed, if the guard does not answer.
const GUARD_LATE: Duration = Duration::from_secs(15);

/// The most bytes that are read from a guard.
const SAID_MAX: u64 = 4096;

/// The stack size of the thread.
const STACK_BYTES: usize = 256 * 1024;

/// The option that makes canal the guard of a hook.
const GUARD_OPTION: &str = "--hook-guard";

/// The thread of a hook. It ends by itself after [`Self::retire`] and [`Self::end`].
#[derive(Debug)]
pub(crate) struct Runner {
    shared: Arc<Shared>,
    /// `None` if the system could not start one.
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    backlog: Backlog<Event>,
    /// The channel to the guard, while one runs.
    running: Option<UnixStream>,
    /// Whether an event is being handled.
    busy: bool,
    /// Whether no further program may start.
    closing: bool,
    /// A note for operators.
    note: Option<String>,
}

impl Runner {
    /// Starts the thread. `program` is canal.
    pub(crate) fn start(program: PathBuf, settings: Arc<HookSettings>, about: Arc<About>) -> Self {
        let shared = Arc::new(Shared::default());
        let its = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("hook".to_owned()).stack_size(STACK_BYTES);
        let thread = thread.spawn(move || its.work(&program, &settings, &about));
        let thread = thread.map_err(|error| {
            tracing::warn!(%error, "cannot start a thread for a hook");
            shared.lock().note = Some(format!("cannot start its thread: {error}"));
        });
        Self { shared, thread: thread.ok() }
    }

    /// Adds an event of this user, which is made only if there is room for it.
    pub(crate) fn push(&self, uid: u32, event: impl FnOnce() -> Option<Event>) {
        let has_room = self.thread.is_some() && self.shared.lock().backlog.has_room(uid);
        if has_room && let Some(event) = event() {
            self.shared.lock().backlog.push(uid, event);
            self.shared.wake.notify_one();
        }
    }

    /// Whether a program runs, or an event waits.
    pub(crate) fn is_busy(&self) -> bool {
        let state = self.shared.lock();
        state.busy || !state.backlog.is_empty()
    }

    /// The note for operators.
    pub(crate) fn note(&self) -> Option<String> {
        self.shared.lock().note.clone()
    }

    /// Asks the thread to end after the running program. Waiting events are dropped.
    pub(crate) fn retire(&self) {
        let mut state = self.shared.lock();
        (state.closing, state.backlog) = (true, Backlog::default());
        drop(state);
        self.shared.wake.notify_one();
    }

    /// Ends the running program and the thread.
    pub(crate) fn end(&self) {
        self.retire();
        if let Some(channel) = &self.shared.lock().running {
            let _ = channel.shutdown(Shutdown::Both);
        }
    }

    /// Whether the thread has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Shared {
    /// Locks the state. A thread that panicked left it consistent: each change is a single move.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, program: &Path, settings: &HookSettings, about: &About) {
        while let Some((event, dropped)) = self.next() {
            let job = Job {
                run: settings.run.clone(),
                user: settings.user.clone(),
                timeout_ms: milliseconds(settings.timeout),
                facts: event.facts(about, dropped),
            };
            let outcome = self.run(program, &job, settings.timeout + GUARD_LATE);
            self.heed(settings, outcome);
        }
    }

    /// Waits for an event that may be handled now. `None` ends the thread.
    fn next(&self) -> Option<(Event, u64)> {
        let mut state = self.lock();
        loop {
            if state.closing {
                return None;
            }
            let now = Instant::now();
            state = match state.backlog.take(now) {
                Next::Event(event, dropped) => {
                    state.busy = true;
                    return Some((event, dropped));
                }
                Next::At(at) => {
                    let waited = self.wake.wait_timeout(state, at.saturating_duration_since(now));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                Next::Nothing => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Runs a job in a guard, and waits for its result.
    ///
    /// # Errors
    /// The guard cannot be started, or did not answer.
    fn run(&self, program: &Path, job: &Job, patience: Duration) -> io::Result<Outcome> {
        let (ours, its) = UnixStream::pair()?;
        ours.set_read_timeout(Some(patience))?;
        {
            let mut state = self.lock();
            if state.closing {
                return Ok(None);
            }
            state.running = Some(ours.try_clone()?);
        }
        let mut child = {
            let mut command = Command::new(program);
            command.arg0("canal").args(["daemon", GUARD_OPTION]).env_clear();
            command.stdin(OwnedFd::from(its)).stdout(Stdio::null()).stderr(Stdio::null());
            // `command` owns the guard's end of the channel, which only the guard may keep open, so
            // it is dropped here.
            command.spawn()?
        };
        let said = answer(&ours, job);
        if said.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            // The guard is stopped. The kernel kills the program together with it.
            let _ = child.kill();
        }
        let _ = child.wait();
        let said = said?;
        serde_json::from_slice(&said)
            .map_err(|_| io::Error::other("its guard ended without a result"))
    }

    /// Updates the note with the result of an event.
    fn heed(&self, settings: &HookSettings, outcome: io::Result<Outcome>) {
        let note = outcome.unwrap_or_else(|error| Some(format!("could not be started: {error}")));
        let mut state = self.lock();
        (state.running, state.busy) = (None, false);
        let before = state.note.take();
        let is_new = match (&note, &before) {
            // The earlier note ends with a time.
            (Some(now), Some(before)) => !before.starts_with(now),
            (now, before) => now.is_some() != before.is_some(),
        };
        let at = time(UnixMillis(clock::unix_ms()));
        state.note = note.as_ref().map(|note| format!("{note} (last at {at})"));
        drop(state);
        let hook = settings.program();
        match note {
            Some(note) if is_new => tracing::warn!("the hook {hook} {note}"),
            None if is_new => tracing::info!("the hook {hook} works again"),
            _ => {}
        }
    }
}

/// Sends a job to a guard, and reads its answer until the channel closes.
fn answer(mut channel: &UnixStream, job: &Job) -> io::Result<Vec<u8>> {
    channel.write_all(&serde_json::to_vec(job)?)?;
    channel.shutdown(Shutdown::Write)?;
    let mut said = Vec::new();
    channel.take(SAID_MAX).read_to_end(&mut said)?;
    Ok(said)
}

/// The most waiting events of one user.
pub(crate) const USER_MAX: usize = 32;

/// The most waiting events in total.
pub(crate) const ALL_MAX: usize = 512;

/// The number of a user's events that are taken without a pause, if none was taken for a while.
const BURST: u32 = 10;

/// After a burst, the time between two events of a user.
const PERIOD: Duration = Duration::from_secs(6);

/// The events that wait for a hook.
#[derive(Debug)]
pub(crate) struct Backlog<E> {
    users: BTreeMap<u32, OfUser<E>>,
    waiting: usize,
    /// The number of events that were taken.
    taken: u64,
    dropped: u64,
}

#[derive(Debug)]
struct OfUser<E> {
    waiting: VecDeque<E>,
    /// The number of all events taken when its last one was, or when it was added.
    turn: u64,
    /// The time at which the user's taken events would be used up, at one event per period.
    used_until: Option<Instant>,
}

/// The next step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<E> {
    /// Handle this event. The number counts the events dropped since the previous one.
    Event(E, u64),
    /// Do nothing before this time.
    At(Instant),
    /// No event waits.
    Nothing,
}

impl<E> Default for Backlog<E> {
    fn default() -> Self {
        Self { users: BTreeMap::new(), waiting: 0, taken: 0, dropped: 0 }
    }
}

impl<E> OfUser<E> {
    /// When the next event of the user may be taken; `None` if it may be taken now.
    fn may_at(&self, now: Instant) -> Option<Instant> {
        self.used_until?.checked_sub(PERIOD * (BURST - 1)).filter(|at| *at > now)
    }
}

impl<E> Backlog<E> {
    /// Whether there is room for another event of this user. If not, counts it as dropped.
    pub(crate) fn has_room(&mut self, uid: u32) -> bool {
        let of_user = self.users.get(&uid).map_or(0, |it| it.waiting.len());
        let most = || self.users.values().map(|it| it.waiting.len()).max().unwrap_or(0);
        let has_room = of_user < USER_MAX && (self.waiting < ALL_MAX || of_user + 1 < most());
        self.dropped += u64::from(!has_room);
        has_room
    }

    /// Adds an event of a user. If too many wait, drops one: this one, or the latest event of the
    /// user with the most events.
    pub(crate) fn push(&mut self, uid: u32, event: E) {
        if !self.has_room(uid) {
            return;
        }
        if self.waiting >= ALL_MAX
            && let Some(most) = self.users.values_mut().max_by_key(|it| it.waiting.len())
            && most.waiting.pop_back().is_some()
        {
            self.waiting -= 1;
            self.dropped += 1;
        }
        let new = OfUser { waiting: VecDeque::new(), turn: self.taken, used_until: None };
        let user = self.users.entry(uid).or_insert(new);
        user.waiting.push_back(event);
        self.waiting += 1;
    }

    /// Takes the next event.
    pub(crate) fn take(&mut self, now: Instant) -> Next<E> {
        self.users.retain(|_, user| {
            !user.waiting.is_empty() || user.used_until.is_some_and(|until| until > now)
        });
        let waiting = self.users.values_mut().filter(|it| !it.waiting.is_empty());
        let Some(user) = waiting.min_by_key(|it| (it.may_at(now), it.turn)) else {
            return Next::Nothing;
        };
        if let Some(at) = user.may_at(now) {
            return Next::At(at);
        }
        let Some(event) = user.waiting.pop_front() else { return Next::Nothing };
        user.used_until = Some(user.used_until.map_or(now, |until| until.max(now)) + PERIOD);
        self.taken += 1;
        user.turn = self.taken;
        self.waiting -= 1;
        Next::Event(event, std::mem::take(&mut self.dropped))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All events that can be taken at a time, and the next step after them.
    fn taken(backlog: &mut Backlog<u32>, now: Instant) -> (Vec<(u32, u64)>, Next<u32>) {
        let mut events = Vec::new();
        loop {
            match backlog.take(now) {
                Next::Event(event, dropped) => events.push((event, dropped)),
                next => return (events, next),
            }
        }
    }

    #[test]
    fn users_take_turns_and_each_keeps_its_order() {
        let (mut backlog, now) = (Backlog::default(), Instant::now());
        for event in [10, 11, 12] {
            backlog.push(1, event);
        }
        backlog.push(3, 30);
        backlog.push(2, 20);
        backlog.push(2, 21);
        let (events, next) = taken(&mut backlog, now);
        let events: Vec<_> = events.into_iter().map(|(event, _)| event).collect();
        assert_eq!(events, [10, 20, 30, 11, 21, 12]);
        assert_eq!(next, Next::Nothing);
        assert!(backlog.is_empty());
    }

    #[test]
    fn a_user_with_many_events_has_a_burst_and_then_a_rate() {
        let (mut backlog, now) = (Backlog::default(), Instant::now());
        (0..20).for_each(|event| backlog.push(1, event));
        let (events, next) = taken(&mut backlog, now);
        assert_eq!(events.len(), BURST as usize);
        assert_eq!(next, Next::At(now + PERIOD));
        backlog.push(2, 99);
        assert_eq!(backlog.take(now), Next::Event(99, 0), "another user does not wait for that");
        let (events, next) = taken(&mut backlog, now + PERIOD * 2);
        assert_eq!(events, [(10, 0), (11, 0)]);
        assert_eq!(next, Next::At(now + PERIOD * 3));
        let (events, next) = taken(&mut backlog, now + PERIOD * 1000);
        assert_eq!((events.len(), next), (8, Next::Nothing));
        assert_eq!(backlog.take(now + PERIOD * 2000), Next::Nothing);
        assert!(backlog.users.is_empty(), "the backlog keeps nothing for a quiet user");
    }

    #[test]
    fn what_is_dropped_is_told_with_the_next_event() {
        let (mut backlog, now) = (Backlog::default(), Instant::now());
        let many = u32::try_from(USER_MAX).unwrap() + 7;
        (0..many).for_each(|event| backlog.push(1, event));
        assert_eq!(backlog.waiting, USER_MAX);
        assert_eq!(backlog.take(now), Next::Event(0, 7));
        assert_eq!(backlog.take(now), Next::Event(1, 0));
    }

    #[test]
    fn when_all_is_full_those_with_the_most_make_room() {
        let mut backlog = Backlog::default();
        for uid in 0..u32::try_from(ALL_MAX / USER_MAX).unwrap() {
            (0..USER_MAX).for_each(|_| backlog.push(uid, uid));
        }
        assert_eq!(backlog.waiting, ALL_MAX);
        backlog.push(1000, 1000);
        assert_eq!((backlog.waiting, backlog.dropped), (ALL_MAX, 1));
        assert_eq!(backlog.users[&1000].waiting.len(), 1, "a user with nothing is heard");
        assert!(!backlog.has_room(2), "a user with as many as any other makes no room");
        let lens: Vec<usize> = backlog.users.values().map(|it| it.waiting.len()).collect();
        assert_eq!(lens.iter().sum::<usize>(), ALL_MAX);
    }
}
