//! The parent's loop: what the child says, what becomes of it, the clock, and signals.
//!
//! Invariant: a number is only signalled while it is that of a child that was not reaped, or of
//! the group of one.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc::signalfd_siginfo;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill, killpg, raise};
use nix::sys::signalfd::SignalFd;
use nix::unistd::{Pid, dup2_stdin, dup2_stdout, getpgid, setpgid};

use crate::sys::child::{End, Reap, ended, stopped};
use crate::sys::process::{RunState, run_state};
use crate::sys::{fds, signals};

use super::descendants::Descendants;
use super::{Ended, Limits};

/// What the child says when it has the lock.
pub(super) const GRANTED: &[u8] = b"g";

/// How often it is looked at the descendants that are left, besides at each end of one: what they
/// are (a daemon) can change without a signal.
const LOOK: Duration = Duration::from_secs(1);

/// Signals that are passed on.
const PASSED_ON: [Signal; 12] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGCONT,
    Signal::SIGWINCH,
    Signal::SIGALRM,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
];

/// Signals that the kernel sends to a whole foreground group.
const OF_TERMINAL: [Signal; 8] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGCONT,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
];

/// What the parent takes in instead of being hit by it.
pub(super) fn signals_watched() -> SigSet {
    PASSED_ON.into_iter().chain([Signal::SIGCHLD]).collect()
}

/// Where the command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// In the caller's process group, and we with it.
    Callers,
    /// In one that it leads.
    Own,
}

/// How far its time has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clock {
    /// It waits for its lock, or may run for ever.
    Stands,
    /// It is to end then.
    Runs(Instant),
    /// It was told to end, and is killed then.
    Over(Option<Instant>),
    /// It was killed.
    Killed,
}

/// The state of a parent.
#[derive(Debug)]
pub(super) struct Parent {
    command: Pid,
    group: Group,
    limits: Limits,
    channel: Option<OwnedFd>,
    signals: SignalFd,
    descendants: Descendants,
    /// Keeps the hold while descendants live.
    children: Vec<OwnedFd>,
    clock: Clock,
    end: Option<End>,
    /// Descendants that know that the time is over.
    told: Vec<Pid>,
}

impl Parent {
    pub(super) fn new(
        command: Pid,
        group: Group,
        limits: Limits,
        channel: OwnedFd,
        signals: SignalFd,
        descendants: Descendants,
    ) -> Self {
        if group == Group::Own {
            // The child does the same; whoever comes first.
            let _ = setpgid(command, command);
        }
        let_go(&[channel.as_fd(), signals.as_fd()]);
        Self {
            command,
            group,
            limits,
            channel: Some(channel),
            signals,
            descendants,
            children: Vec::new(),
            clock: Clock::Stands,
            end: None,
            told: Vec::new(),
        }
    }

    /// Until the command has ended, and where they count its descendants.
    pub(super) fn run(mut self) -> io::Result<Ended> {
        loop {
            self.hear()?;
            self.look()?;
            let left = self.descendants.living(self.command)?;
            if let Some(end) = self.end
                && left.is_empty()
            {
                ended(self.command, Reap::Now)?;
                return Ok(self.ended(end));
            }
            self.keep_time(&left);
            self.wait()?;
            self.pass_signals(&left)?;
        }
    }

    fn ended(&self, end: End) -> Ended {
        match (self.clock, end) {
            (Clock::Over(_), _) => Ended::TimeOver(self.limits.signal),
            (Clock::Killed, _) => Ended::TimeOver(Signal::SIGKILL),
            (_, End::Exited(code)) => Ended::Exited(code),
            (_, End::Killed(signal)) => Ended::Signaled(signal),
        }
    }

    /// Takes in what the child says.
    fn hear(&mut self) -> io::Result<()> {
        let Some(channel) = &self.channel else { return Ok(()) };
        let mut buffer = [0; 8];
        match fds::receive(channel.as_fd(), &mut buffer, &mut self.children, libc::MSG_DONTWAIT) {
            Ok(0) => self.channel = None,
            Ok(_) => {
                let deadline =
                    self.limits.max_run.and_then(|most| Instant::now().checked_add(most));
                self.clock = deadline.map_or(Clock::Stands, Clock::Runs);
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => {}
                // The child was killed with something unread.
                Some(libc::ECONNRESET) => self.channel = None,
                _ => return Err(error),
            },
        }
        Ok(())
    }

    /// Takes in what became of the command.
    fn look(&mut self) -> io::Result<()> {
        if self.end.is_none() {
            if let Some(signal) = stopped(self.command)?
                && self.group == Group::Callers
            {
                stop_too(signal)?;
            }
            self.end = ended(self.command, Reap::Later)?;
        }
        Ok(())
    }

    fn keep_time(&mut self, left: &[Pid]) {
        let now = Instant::now();
        match self.clock {
            Clock::Runs(deadline) if now >= deadline => {
                let kill_at = self.limits.kill_after.and_then(|grace| now.checked_add(grace));
                self.clock = Clock::Over(kill_at);
                self.send(self.limits.signal);
                self.send(Signal::SIGCONT);
            }
            Clock::Over(Some(kill_at)) if now >= kill_at => {
                self.clock = Clock::Killed;
                self.told.clear();
                self.send(Signal::SIGKILL);
            }
            _ => {}
        }
        match self.clock {
            Clock::Stands | Clock::Runs(_) => {}
            Clock::Over(_) => self.tell(left, self.limits.signal),
            Clock::Killed => self.tell(left, Signal::SIGKILL),
        }
    }

    /// Tells descendants, each once, that the time is over.
    fn tell(&mut self, left: &[Pid], signal: Signal) {
        for pid in left {
            if !self.told.contains(pid) {
                let _ = kill(*pid, signal);
                let _ = kill(*pid, Signal::SIGCONT);
                self.told.push(*pid);
            }
        }
    }

    /// Signals the command, or its group. It may refuse (another user's since it began), or be
    /// gone but for its number: there is nothing to do about either.
    fn send(&self, signal: Signal) {
        let leads = self.group == Group::Own && getpgid(Some(self.command)) == Ok(self.command);
        if self.group == Group::Own {
            let _ = killpg(self.command, signal);
        }
        // It may have left the group that it was given.
        if !leads {
            let _ = kill(self.command, signal);
        }
    }

    /// Waits for something to happen, or to be due.
    fn wait(&self) -> io::Result<()> {
        let due = match self.clock {
            Clock::Runs(due) | Clock::Over(Some(due)) => {
                Some(due.saturating_duration_since(Instant::now()))
            }
            _ => None,
        };
        let look = self.end.is_some().then_some(LOOK);
        let timeout = due.into_iter().chain(look).min();
        // Rounded up: not to wake before the time.
        let timeout = timeout.map_or(PollTimeout::NONE, |timeout| {
            PollTimeout::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX)
        });
        let mut polled = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        if let Some(channel) = &self.channel {
            polled.push(PollFd::new(channel.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut polled, timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn pass_signals(&self, left: &[Pid]) -> io::Result<()> {
        while let Some(info) = self.signals.read_signal()? {
            let number = i32::try_from(info.ssi_signo).unwrap_or(0);
            let Ok(signal) = Signal::try_from(number) else { continue };
            if signal == Signal::SIGCHLD || self.has_got(signal, &info) {
                continue;
            }
            self.send(signal);
            if self.end.is_some() {
                for pid in left {
                    let _ = kill(*pid, signal);
                }
            }
        }
        Ok(())
    }

    /// Whether the command got the signal by itself.
    fn has_got(&self, signal: Signal, info: &signalfd_siginfo) -> bool {
        if self.group == Group::Own {
            return false;
        }
        if info.ssi_code == libc::SI_KERNEL {
            return OF_TERMINAL.contains(&signal);
        }
        let sender = i32::try_from(info.ssi_pid).unwrap_or(0);
        // It signalled its group, and so us.
        sender == self.command.as_raw()
            // A shell continues the whole group.
            || signal == Signal::SIGCONT && !self.is_stopped()
    }

    fn is_stopped(&self) -> bool {
        run_state(self.command.as_raw().unsigned_abs()) == RunState::Stopped
    }
}

/// Stops this process by the signal that stopped the command, so that the shell sees what it would
/// have seen; returns when it is continued.
fn stop_too(signal: i32) -> io::Result<()> {
    let signal = Signal::try_from(signal).unwrap_or(Signal::SIGSTOP);
    if signal == Signal::SIGSTOP {
        return Ok(raise(signal)?);
    }
    let was_ignored = signals::set_default(signal)?;
    raise(signal)?;
    let mut only = SigSet::empty();
    only.add(signal);
    only.thread_unblock()?;
    only.thread_block()?;
    if was_ignored {
        signals::set_ignored(signal)?;
    }
    Ok(())
}

/// Lets go of what the caller gave to the command: who waits for the end of a pipe, or for a file
/// lock, waits for the command only. Standard error stays, for words of canal's own.
fn let_go(keep: &[BorrowedFd<'_>]) {
    fds::close_from_except(3, keep);
    if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = dup2_stdin(&null);
        let _ = dup2_stdout(&null);
    }
}
