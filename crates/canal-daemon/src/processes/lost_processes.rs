//! Processes that have lost their holds, until they no longer have to be ended.
//!
//! Invariant: a process leaves this list only when it was seen dead, or when it may outlive its
//! lock. A process that must be killed leaves only when no process that runs under its hold is
//! found. A signal counts as sent only if the kernel accepted it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use nix::sys::signal::Signal;

use crate::processes::find_descendants::{self, Trace};
use crate::processes::holder_record::{Holder, may_outlive_lock};
use canal_core::{OnLost, ProcessId, Tag, Token};
use canal_sys::pidfd::{Pidfd, is_gone};
use canal_sys::process::Found;

/// How often the processes are checked.
pub(crate) const LOOK_EVERY_MS: u64 = 10;

/// How long after the KILL the host stops waiting for the end. The kernel no longer lets the
/// process execute its program.
const UNKILLABLE_MS: u64 = 5_000;

/// How often processes are checked that should have ended long ago.
const LATE_EVERY_MS: u64 = 1_000;

/// How many consecutive checks must find no process that runs under a hold. A process started
/// during one check is found in the next.
const CLEAN_LOOKS: u8 = 2;

/// The last signal to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// TERM.
    Asked,
    /// KILL.
    Killed,
}

/// The processes that have lost their holds, and those that lose them unless the engine answers.
#[derive(Debug, Default)]
pub(crate) struct LostProcesses(BTreeMap<Token, Lost>);

/// A process that has to end.
#[derive(Debug, Default)]
struct Lost {
    token: Token,
    told: Holder,
    /// Whether its hold is lost. Otherwise it keeps the hold if the engine answers in time.
    is_lost: bool,
    /// `None` until it can be opened, because there may be no descriptors left.
    pidfd: Option<Pidfd>,
    /// Identifies the processes that are killed along with it.
    trace: Option<Trace>,
    /// Whether the process itself no longer has to be ended.
    is_over: bool,
    /// How many consecutive checks found no process that runs under its hold.
    clean: u8,
    /// When the process is killed, in milliseconds of CLOCK_BOOTTIME. Before that, it gets TERM.
    kill_at: u64,
    done: Option<Stage>,
    /// When the kernel accepted the KILL.
    killed_at: Option<u64>,
    /// Whether an error was logged because it cannot be found or signalled.
    complained: bool,
    /// Whether an error was logged because it does not end.
    is_late: bool,
}

impl LostProcesses {
    /// Schedules the end of a process that has lost its hold, as far as its `on_lost` setting
    /// allows: TERM from now on, KILL at `kill_at`. At `kill_at` the processes that run under its
    /// hold are killed, too. A second call for the same token changes nothing.
    pub(crate) fn add(
        &mut self,
        (token, told): (Token, Holder),
        (pidfd, trace): (Option<Pidfd>, Option<Trace>),
        kill_at: u64,
    ) {
        let lost = self.0.entry(token).or_insert_with(|| Lost::new((token, told), trace, kill_at));
        if !lost.is_lost {
            (lost.is_lost, lost.kill_at) = (true, kill_at);
            lost.pidfd = pidfd.or(lost.pidfd.take());
        }
    }

    /// The same for a process that keeps its hold if it is [spared](Self::spare) before `kill_at`.
    pub(crate) fn endanger(
        &mut self,
        holder: (Token, Holder),
        trace: impl FnOnce() -> Option<Trace>,
        kill_at: u64,
    ) {
        let lost = self.0.entry(holder.0).or_insert_with(|| Lost::new(holder, trace(), kill_at));
        if !lost.is_lost {
            lost.kill_at = kill_at;
        }
    }

    /// Keeps only the processes that have lost their hold, and those that `is_endangered` names.
    pub(crate) fn spare(&mut self, is_endangered: impl Fn(Token) -> bool) {
        self.0.retain(|token, lost| lost.is_lost || is_endangered(*token));
    }

    /// Whether the process of a token has lost its hold and has to end.
    pub(crate) fn has(&self, token: Token) -> bool {
        self.0.get(&token).is_some_and(|lost| lost.is_lost)
    }

    /// Whether this host must make no requests, because one of these processes may still run its
    /// program.
    pub(crate) fn are_awaited(&self) -> bool {
        !self.awaited().is_empty()
    }

    /// The pids of the processes that this host waits for.
    pub(crate) fn awaited(&self) -> BTreeSet<u32> {
        let is_awaited =
            |lost: &&Lost| lost.is_lost && lost.told.on_lost == OnLost::Kill && !lost.is_late;
        self.0.values().filter(is_awaited).map(|lost| lost.told.process.pid).collect()
    }

    /// When to check the processes next, in milliseconds of CLOCK_BOOTTIME. Until its `kill_at`,
    /// nothing has to be checked of an endangered process that has got TERM.
    pub(crate) fn next_look(&self, now: u64) -> Option<u64> {
        let is_due = |lost: &&Lost| lost.is_lost || lost.done.is_none() && !lost.is_over;
        let late = |lost: &Lost| now > lost.kill_at.saturating_add(UNKILLABLE_MS);
        self.0.values().find(is_due)?;
        let every = if self.0.values().all(late) { LATE_EVERY_MS } else { LOOK_EVERY_MS };
        Some(now.saturating_add(every))
    }

    /// Sends the signals that are due now. Returns the processes that have lost their hold and no
    /// longer have to be ended. `watched` returns the pidfd of a process that is already open,
    /// `find` looks up a process.
    pub(crate) fn look<'a>(
        &mut self,
        now: u64,
        watched: impl Fn(Token, ProcessId) -> Option<&'a Pidfd>,
        find: impl Fn(ProcessId) -> Found,
    ) -> Vec<Token> {
        let traces: Vec<&Trace> = self.0.values().filter_map(|lost| lost.trace_due(now)).collect();
        let left = find_descendants::kill(&traces);
        // A process with several holds gets each signal once.
        let mut sent: BTreeSet<(ProcessId, Stage)> = BTreeSet::new();
        sent.extend(self.0.values().filter_map(|lost| Some((lost.told.process, lost.done?))));
        let over = self.0.iter_mut().filter_map(|(token, lost)| {
            lost.note_left(&left, now);
            let pidfd = watched(*token, lost.told.process);
            lost.is_over = lost.is_over || lost.look(now, pidfd, &find, &mut sent);
            let is_clean = lost.trace.is_none() || lost.clean >= CLEAN_LOOKS;
            (lost.is_lost && lost.is_over && is_clean).then_some(*token)
        });
        let over: Vec<Token> = over.collect();
        over.iter().for_each(|token| drop(self.0.remove(token)));
        over
    }
}

impl Lost {
    fn new((token, told): (Token, Holder), trace: Option<Trace>, kill_at: u64) -> Self {
        let trace = trace.filter(|_| told.on_lost == OnLost::Kill);
        Self { token, told, trace, kill_at, ..Self::default() }
    }

    /// Why it has to end, for messages.
    fn why(&self) -> &'static str {
        if self.is_lost { "its lock is lost" } else { "the engine has been away for too long" }
    }

    /// The trace, if the processes that run under this hold must be killed now. This happens before
    /// the owner is killed, because some of them are found through the owner, and again after the
    /// owner has ended.
    fn trace_due(&self, now: u64) -> Option<&Trace> {
        let is_due = self.is_over || self.done < Some(Stage::Killed);
        self.trace.as_ref().filter(|_| is_due && now >= self.kill_at)
    }

    /// Notes whether a process was found that runs under this hold.
    fn note_left(&mut self, left: &BTreeSet<Tag>, now: u64) {
        let Some(trace) = &self.trace else { return };
        if now < self.kill_at || !self.is_over {
            return;
        }
        if left.contains(&trace.tag) {
            self.clean = 0;
            self.killed_at.get_or_insert(now);
            self.note_lateness(now);
        } else {
            self.clean += 1;
        }
    }

    /// Sends the signal that is due to the process itself. Returns whether it no longer has to be
    /// ended. An unknown state does not count.
    fn look(
        &mut self,
        now: u64,
        watched: Option<&Pidfd>,
        find: impl Fn(ProcessId) -> Found,
        sent: &mut BTreeSet<(ProcessId, Stage)>,
    ) -> bool {
        let Holder { process, on_lost, .. } = self.told;
        if may_outlive_lock(on_lost, self.done.is_some()) {
            return true;
        }
        if watched.is_none() && self.pidfd.is_none() {
            match find(process) {
                Found::Same(pidfd) => self.pidfd = Some(pidfd),
                Found::Unknown(error) => self.complain("it cannot be found", &error),
                Found::Gone => return true,
            }
        }
        let Some(pidfd) = watched.or(self.pidfd.as_ref()) else { return false };
        if pidfd.has_ended() {
            return true;
        }
        let (due, signal) = match on_lost {
            OnLost::Kill if now >= self.kill_at => (Stage::Killed, Signal::SIGKILL),
            _ => (Stage::Asked, Signal::SIGTERM),
        };
        if Some(due) > self.done {
            let is_sent = sent.contains(&(process, due));
            let signalled = if is_sent { Ok(()) } else { pidfd.signal(signal) };
            match signalled {
                Ok(()) => {
                    if sent.insert((process, due)) {
                        let (pid, token) = (process.pid, self.token.0);
                        tracing::warn!(pid, token, "{}: sent {signal}", self.why());
                    }
                    self.done = Some(due);
                    self.killed_at = (due == Stage::Killed).then_some(now);
                }
                // The next check finds its end.
                Err(error) if is_gone(&error) => {}
                Err(error) => self.complain("it cannot be signalled", &error),
            }
        }
        self.note_lateness(now);
        false
    }

    fn note_lateness(&mut self, now: u64) {
        let is_late = self.killed_at.is_some_and(|at| now > at.saturating_add(UNKILLABLE_MS));
        if is_late && !self.is_late {
            let (pid, token) = (self.told.process.pid, self.token.0);
            tracing::error!(pid, token, "it was killed but does not end");
        }
        self.is_late = is_late;
    }

    fn complain(&mut self, what: &str, error: &io::Error) {
        if !self.complained {
            self.complained = true;
            let (pid, token) = (self.told.process.pid, self.token.0);
            tracing::error!(pid, token, %error, "{}, and {what}; trying again", self.why());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::process::{Child, Command};

    use super::*;
    use crate::processes::identify_owner::{find, process_of};
    use canal_protocol::HOLD_VARIABLE;
    use canal_sys::rerun;

    const TOKEN: Token = Token(7);

    fn shell(script: &str) -> (Child, Holder) {
        let child = Command::new("/bin/sh").args(["-c", script]).spawn().unwrap();
        let process = process_of(&Pidfd::open(child.id()).unwrap()).unwrap();
        (child, Holder { process, on_lost: OnLost::Kill, mark: None, tag: None, taken_over: false })
    }

    fn unwatched(_: Token, _: ProcessId) -> Option<&'static Pidfd> {
        None
    }

    fn sleeper() -> (Child, Holder) {
        shell("exec sleep 60")
    }

    fn lost_processes(told: Holder, kill_at: u64) -> LostProcesses {
        let mut lost_processes = LostProcesses::default();
        lost_processes.add((TOKEN, told), (None, None), kill_at);
        lost_processes
    }

    fn killed_by(mut child: Child) -> Option<i32> {
        std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap())
    }

    fn until_over(lost_processes: &mut LostProcesses, now: u64) {
        rerun::wait_until("it is over", || !lost_processes.look(now, unwatched, find).is_empty());
        assert!(!lost_processes.has(TOKEN));
    }

    #[test]
    fn a_process_that_cannot_be_opened_for_a_moment_is_killed_afterwards() {
        let (child, told) = sleeper();
        let mut lost_processes = lost_processes(told, 0);
        let no_descriptors = || Found::Unknown(io::Error::from_raw_os_error(libc::EMFILE));
        for now in 1..100 {
            assert!(lost_processes.look(now * 10_000, unwatched, |_| no_descriptors()).is_empty());
            assert!(lost_processes.are_awaited(), "nothing was sent yet");
        }
        until_over(&mut lost_processes, 1_000_000);
        assert_eq!(killed_by(child), Some(9));
    }

    #[test]
    fn a_fresh_daemon_kills_each_lost_process_at_its_own_time() {
        let ((first, one), (second, other)) = (sleeper(), sleeper());
        let now = 1_000_000;
        let mut lost_processes = lost_processes(one, now);
        lost_processes.add((Token(8), other), (None, None), now + 500);
        lost_processes.0.get_mut(&Token(8)).unwrap().done = Some(Stage::Asked);
        until_over(&mut lost_processes, now);
        assert_eq!(killed_by(first), Some(9));
        assert!(lost_processes.has(Token(8)) && lost_processes.are_awaited());
        assert_eq!(lost_processes.next_look(now), Some(now + LOOK_EVERY_MS));
        rerun::wait_until("it is over", || {
            !lost_processes.look(now + 500, unwatched, find).is_empty()
        });
        assert_eq!(killed_by(second), Some(9));
    }

    #[test]
    fn a_process_that_got_term_is_killed_later() {
        let (mut child, told) = shell("trap '' TERM; echo; exec sleep 60 >/dev/null");
        let mut lost_processes = lost_processes(told, 100);
        assert!(lost_processes.look(50, unwatched, find).is_empty());
        assert!(lost_processes.look(60, unwatched, find).is_empty());
        let _ = child.try_wait().unwrap();
        until_over(&mut lost_processes, 100);
        assert!(matches!(killed_by(child), Some(9 | 15)));
    }

    #[test]
    fn the_first_kill_time_of_a_process_counts() {
        let (child, told) = sleeper();
        let mut lost_processes = lost_processes(told, 1_000);
        lost_processes.add((TOKEN, told), (None, None), u64::MAX);
        until_over(&mut lost_processes, 1_000);
        assert_eq!(killed_by(child), Some(9));
    }

    #[test]
    fn a_killed_process_that_does_not_end_stays_listed_and_delays_nothing() {
        let (child, told) = sleeper();
        let mut lost_processes = LostProcesses::default();
        // The test pretends that the KILL was accepted, because no process here survives a KILL.
        lost_processes.add((TOKEN, told), (None, None), 1_000);
        let lost = lost_processes.0.get_mut(&TOKEN).unwrap();
        (lost.done, lost.killed_at) = (Some(Stage::Killed), Some(1_000));
        assert!(lost_processes.look(1_000 + UNKILLABLE_MS, unwatched, find).is_empty());
        assert!(lost_processes.are_awaited());
        let late = 1_001 + UNKILLABLE_MS;
        assert!(lost_processes.look(late, unwatched, find).is_empty());
        assert!(!lost_processes.are_awaited() && lost_processes.has(TOKEN));
        assert_eq!(lost_processes.next_look(late), Some(late + LATE_EVERY_MS));
        Pidfd::open(child.id()).unwrap().signal(Signal::SIGKILL).unwrap();
        until_over(&mut lost_processes, late);
        assert_eq!(killed_by(child), Some(9));
    }

    #[test]
    fn descendants_are_killed_before_a_lost_process_is_forgotten() {
        let tag = Tag(0xd003_u128 << 64 | u128::from(std::process::id()));
        let mut left = Command::new("/bin/sh");
        let left = left.env(HOLD_VARIABLE, tag.to_string()).args(["-c", "exec sleep 60"]);
        let left = left.spawn().unwrap();
        let (mut child, told) = sleeper();
        child.kill().unwrap();
        child.wait().unwrap();
        let told = Holder { tag: Some(tag), ..told };
        let mut lost_processes = LostProcesses::default();
        let dir = tempfile::tempdir().unwrap();
        lost_processes.add(
            (TOKEN, told),
            (None, told.tag.map(|tag| Trace::of(tag, dir.path()))),
            1_000,
        );
        assert!(lost_processes.look(999, unwatched, find).is_empty(), "its time has not come");
        assert!(!Pidfd::open(left.id()).unwrap().has_ended());
        until_over(&mut lost_processes, 1_000);
        assert_eq!(killed_by(left), Some(9));
    }

    #[test]
    fn an_endangered_process_is_asked_once_and_spared_if_the_engine_answers() {
        let (mut child, told) = shell("trap '' TERM; echo; exec sleep 60 >/dev/null");
        let mut lost_processes = LostProcesses::default();
        for (token, kill_at) in [(TOKEN, 100), (Token(8), 100), (TOKEN, 200)] {
            lost_processes.endanger((token, told), || None, kill_at);
        }
        assert!(lost_processes.look(50, unwatched, find).is_empty());
        assert!(!lost_processes.has(TOKEN) && !lost_processes.are_awaited());
        assert_eq!(lost_processes.next_look(50), None, "it has got TERM for both tokens");
        lost_processes.spare(|token| token == TOKEN);
        assert!(lost_processes.look(150, unwatched, find).is_empty());
        let _ = child.try_wait().unwrap();
        // It loses the hold before the time that it had.
        lost_processes.add((TOKEN, told), (None, None), 160);
        assert!(lost_processes.are_awaited());
        until_over(&mut lost_processes, 160);
        lost_processes.endanger((Token(9), told), || None, 100);
        lost_processes.spare(|_| false);
        assert_eq!(lost_processes.next_look(0), None);
        assert!(matches!(killed_by(child), Some(9 | 15)));
    }

    #[test]
    fn a_process_that_may_outlive_its_lock_is_looked_up_once_at_most() {
        let (child, told) = sleeper();
        let looks = Cell::new(0);
        let counted = |process| {
            looks.set(looks.get() + 1);
            find(process)
        };
        let warned = Holder { on_lost: OnLost::Warn, ..told };
        assert_eq!(lost_processes(warned, 0).look(1, unwatched, counted).len(), 1);
        assert_eq!(looks.get(), 0);
        let mut lost_processes = lost_processes(Holder { on_lost: OnLost::Term, ..told }, 0);
        assert!(!lost_processes.are_awaited());
        assert!(lost_processes.look(1, unwatched, counted).is_empty(), "it is asked to end");
        assert_eq!(
            lost_processes.look(1, unwatched, counted).len(),
            1,
            "that is all that may be done"
        );
        assert_eq!(looks.get(), 1);
        assert_eq!(killed_by(child), Some(15));
    }
}
