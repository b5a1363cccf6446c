//! Processes that have lost their holds, until they no longer have to be ended.
//!
//! Invariant: a process leaves this list only when it was seen dead, or when it may outlive its
//! lock. A process that must be killed leaves only when no process that runs under its hold is
//! found. A signal counts as sent only if the kernel accepted it.

use std::collections::BTreeSet;
use std::io;

use nix::sys::signal::Signal;

use crate::processes::descendants::{self, Trace};
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
pub(crate) enum Stage {
    /// TERM.
    Asked,
    /// KILL.
    Killed,
}

impl Stage {
    pub(crate) fn signal(self) -> Signal {
        match self {
            Self::Asked => Signal::SIGTERM,
            Self::Killed => Signal::SIGKILL,
        }
    }

    /// The signal that the command's `--on-lost` setting allows at this stage.
    pub(crate) fn allowed(self, on_lost: OnLost) -> Option<Self> {
        match on_lost {
            OnLost::Kill => Some(self),
            OnLost::Term => Some(Self::Asked),
            OnLost::Warn => None,
        }
    }
}

/// The processes that have lost their holds.
#[derive(Debug, Default)]
pub(crate) struct LostProcesses(Vec<Lost>);

/// A process that has lost its hold.
#[derive(Debug)]
struct Lost {
    token: Token,
    told: Holder,
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
    /// Schedules the end of a process, as far as its `on_lost` setting allows: TERM from now on,
    /// KILL at `kill_at`. At `kill_at` the processes that run under its hold are killed, too.
    /// `done` is the last signal already sent. A second call for the same token changes nothing.
    pub(crate) fn add(
        &mut self,
        (token, told): (Token, Holder),
        (pidfd, trace): (Option<Pidfd>, Option<Trace>),
        done: Option<Stage>,
        kill_at: u64,
    ) {
        if self.has(token) {
            return;
        }
        let killed_at = (done == Some(Stage::Killed)).then_some(kill_at);
        self.0.push(Lost {
            token,
            told,
            pidfd,
            trace: trace.filter(|_| told.on_lost == OnLost::Kill),
            is_over: false,
            clean: 0,
            kill_at,
            done,
            killed_at,
            complained: false,
            is_late: false,
        });
    }

    pub(crate) fn has(&self, token: Token) -> bool {
        self.0.iter().any(|lost| lost.token == token)
    }

    /// Whether this host must make no requests, because one of these processes may still run its
    /// program.
    pub(crate) fn are_awaited(&self) -> bool {
        self.0.iter().any(Lost::is_awaited)
    }

    /// The pids of the processes that this host waits for.
    pub(crate) fn awaited(&self) -> BTreeSet<u32> {
        let awaited = self.0.iter().filter(|lost| lost.is_awaited());
        awaited.map(|lost| lost.told.process.pid).collect()
    }

    /// When to check the processes next, in milliseconds of CLOCK_BOOTTIME.
    pub(crate) fn next_look(&self, now: u64) -> Option<u64> {
        let late = |lost: &Lost| now > lost.kill_at.saturating_add(UNKILLABLE_MS);
        let every = if self.0.iter().all(late) { LATE_EVERY_MS } else { LOOK_EVERY_MS };
        (!self.0.is_empty()).then_some(now.saturating_add(every))
    }

    /// Sends the signals that are due now. Returns the processes that no longer have to be ended.
    /// `find` looks up a process.
    pub(crate) fn look(&mut self, now: u64, find: impl Fn(ProcessId) -> Found) -> Vec<Token> {
        let traces: Vec<&Trace> = self.0.iter().filter_map(|lost| lost.trace_due(now)).collect();
        let left = descendants::kill(&traces);
        let over = self.0.extract_if(.., |lost| {
            lost.note_left(&left, now);
            lost.is_over = lost.is_over || lost.look(now, &find);
            lost.is_over && (lost.trace.is_none() || lost.clean >= CLEAN_LOOKS)
        });
        over.map(|lost| lost.token).collect()
    }
}

impl Lost {
    fn is_awaited(&self) -> bool {
        self.told.on_lost == OnLost::Kill && !self.is_late
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
    fn look(&mut self, now: u64, find: impl Fn(ProcessId) -> Found) -> bool {
        let Holder { process, on_lost, .. } = self.told;
        if may_outlive_lock(on_lost, self.done.is_some()) {
            return true;
        }
        if self.pidfd.is_none() {
            match find(process) {
                Found::Same(pidfd) => self.pidfd = Some(pidfd),
                Found::Unknown(error) => self.complain("it cannot be found", &error),
                Found::Gone => return true,
            }
        }
        let Some(pidfd) = &self.pidfd else { return false };
        if pidfd.has_ended() {
            return true;
        }
        let due = if now < self.kill_at { Stage::Asked } else { Stage::Killed };
        if let Some(due) = due.allowed(on_lost) {
            if Some(due) > self.done {
                self.signal(due, now);
            }
            self.note_lateness(now);
        }
        false
    }

    fn signal(&mut self, stage: Stage, now: u64) {
        let (pid, token, signal) = (self.told.process.pid, self.token.0, stage.signal());
        let Some(pidfd) = &self.pidfd else { return };
        match pidfd.signal(signal) {
            Ok(()) => {
                tracing::warn!(pid, token, "its lock is lost: sent {signal}");
                self.done = Some(stage);
                self.killed_at = (stage == Stage::Killed).then_some(now);
            }
            // The next check finds its end.
            Err(error) if is_gone(&error) => {}
            Err(error) => self.complain("it cannot be signalled", &error),
        }
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
            tracing::error!(pid, token, %error, "it lost its lock, and {what}; trying again");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::process::{Child, Command};

    use super::*;
    use crate::processes::identity::{find, process_of};
    use canal_protocol::HOLD_VARIABLE;
    use canal_sys::rerun;

    const TOKEN: Token = Token(7);

    fn shell(script: &str) -> (Child, Holder) {
        let child = Command::new("/bin/sh").args(["-c", script]).spawn().unwrap();
        let process = process_of(&Pidfd::open(child.id()).unwrap()).unwrap();
        (child, Holder { process, on_lost: OnLost::Kill, mark: None, tag: None, taken_over: false })
    }

    fn sleeper() -> (Child, Holder) {
        shell("exec sleep 60")
    }

    fn lost_processes(told: Holder, kill_at: u64) -> LostProcesses {
        let mut lost_processes = LostProcesses::default();
        lost_processes.add((TOKEN, told), (None, None), None, kill_at);
        lost_processes
    }

    fn killed_by(mut child: Child) -> Option<i32> {
        std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap())
    }

    fn until_over(lost_processes: &mut LostProcesses, now: u64) {
        rerun::wait_until("it is over", || !lost_processes.look(now, find).is_empty());
        assert!(!lost_processes.has(TOKEN));
    }

    #[test]
    fn a_process_that_cannot_be_opened_for_a_moment_is_killed_afterwards() {
        let (child, told) = sleeper();
        let mut lost_processes = lost_processes(told, 0);
        let no_descriptors = || Found::Unknown(io::Error::from_raw_os_error(libc::EMFILE));
        for now in 1..100 {
            assert!(lost_processes.look(now * 10_000, |_| no_descriptors()).is_empty());
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
        lost_processes.add((Token(8), other), (None, None), Some(Stage::Asked), now + 500);
        until_over(&mut lost_processes, now);
        assert_eq!(killed_by(first), Some(9));
        assert!(lost_processes.has(Token(8)) && lost_processes.are_awaited());
        assert_eq!(lost_processes.next_look(now), Some(now + LOOK_EVERY_MS));
        rerun::wait_until("it is over", || !lost_processes.look(now + 500, find).is_empty());
        assert_eq!(killed_by(second), Some(9));
    }

    #[test]
    fn a_process_that_got_term_is_killed_later() {
        let (mut child, told) = shell("trap '' TERM; echo; exec sleep 60 >/dev/null");
        let mut lost_processes = lost_processes(told, 100);
        assert!(lost_processes.look(50, find).is_empty());
        assert!(lost_processes.look(60, find).is_empty());
        let _ = child.try_wait().unwrap();
        until_over(&mut lost_processes, 100);
        assert!(matches!(killed_by(child), Some(9 | 15)));
    }

    #[test]
    fn the_first_kill_time_of_a_process_counts() {
        let (child, told) = sleeper();
        let mut lost_processes = lost_processes(told, 1_000);
        lost_processes.add((TOKEN, told), (None, None), None, u64::MAX);
        until_over(&mut lost_processes, 1_000);
        assert_eq!(killed_by(child), Some(9));
    }

    #[test]
    fn a_killed_process_that_does_not_end_stays_listed_and_delays_nothing() {
        let (child, told) = sleeper();
        let mut lost_processes = LostProcesses::default();
        // The test pretends that the KILL was accepted, because no process here survives a KILL.
        lost_processes.add((TOKEN, told), (None, None), Some(Stage::Killed), 1_000);
        assert!(lost_processes.look(1_000 + UNKILLABLE_MS, find).is_empty());
        assert!(lost_processes.are_awaited());
        let late = 1_001 + UNKILLABLE_MS;
        assert!(lost_processes.look(late, find).is_empty());
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
            None,
            1_000,
        );
        assert!(lost_processes.look(999, find).is_empty(), "its time has not come");
        assert!(!Pidfd::open(left.id()).unwrap().has_ended());
        until_over(&mut lost_processes, 1_000);
        assert_eq!(killed_by(left), Some(9));
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
        assert_eq!(lost_processes(warned, 0).look(1, counted).len(), 1);
        assert_eq!(looks.get(), 0);
        let mut lost_processes = lost_processes(Holder { on_lost: OnLost::Term, ..told }, 0);
        assert!(!lost_processes.are_awaited());
        assert!(lost_processes.look(1, counted).is_empty(), "it is asked to end");
        assert_eq!(lost_processes.look(1, counted).len(), 1, "that is all that may be done");
        assert_eq!(looks.get(), 1);
        assert_eq!(killed_by(child), Some(15));
    }
}
