//! The supervisor's loop: messages of the child, the end of the child, the time limit, the lock,
//! and signals.
//!
//! Invariant: a pid is signalled only while it belongs to a child that was not reaped, or to the
//! group of such a child.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use libc::signalfd_siginfo;
use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::signalfd::SignalFd;
use nix::unistd::{Pid, getpgid, setpgid};

use canal_lock::client::Fate;
use canal_lock::client::channel::{End, Received};
use canal_lock::client::hold_monitor::{HoldMonitor, LostHold, Phase};
use canal_sys::fds;
use canal_sys::process::child::{self, Reap, ended, stopped};
use canal_sys::process::{RunState, run_state};
use canal_sys::signals::SignalRefused;

use super::caller::{Ended, Limits, SupervisorHooks};
use super::child_channel::{ChildMessage, Ready, held};
use super::descendants::{self, Descendants};
use super::fate_query::FateQuery;
use super::forwarded_signals::{OF_TERMINAL, stop_too};

/// How often to check the remaining descendants, in addition to each end of one: a process can
/// become a daemon without a signal.
const LOOK: Duration = Duration::from_secs(1);

/// The same while killing them: new ones can appear without a signal.
const LOOK_KILLING: Duration = Duration::from_millis(20);

/// Where the command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// In the caller's process group, with the supervisor. Used with a controlling terminal: the
    /// command can read from it, and gets Ctrl-C and Ctrl-Z directly.
    Callers,
    /// In a group that it leads, so that its descendants can be ended with it. Used without a
    /// controlling terminal.
    Own,
}

/// The state of the time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimeLimit {
    /// The command waits for its lock, or has no limit.
    NotStarted,
    /// The command must end at this time.
    Running(Instant),
    /// The command was signalled, and is killed at this time.
    Signalled(Option<Instant>),
    /// It was killed.
    Killed,
}

/// The state of the supervisor.
pub(super) struct Parent<'a> {
    command: Pid,
    group: Group,
    limits: Limits,
    hooks: &'a mut dyn SupervisorHooks,
    /// `None` once the command has begun, or the child has ended.
    channel: Option<End>,
    signals: SignalFd,
    descendants: Descendants,
    /// The monitor of a hold that can be lost.
    monitor: Option<HoldMonitor>,
    fate_query: FateQuery,
    /// Whether it has asked the daemon if it killed the command.
    asked_fate: bool,
    /// The descriptors that keep the hold while descendants live.
    children: Vec<OwnedFd>,
    time_limit: TimeLimit,
    /// The signals of the time limit that reached the command, or after its end, its descendants.
    reached: Vec<Signal>,
    end: Option<child::End>,
    /// Descendants that were already signalled.
    signalled: Vec<Pid>,
    /// Processes that cannot be signalled.
    refused: Vec<Pid>,
}

impl<'a> Parent<'a> {
    pub(super) fn new(
        command: Pid,
        group: Group,
        limits: Limits,
        channel: End,
        signals: SignalFd,
        descendants: Descendants,
        hooks: &'a mut dyn SupervisorHooks,
    ) -> Self {
        if group == Group::Own {
            // The child does the same; the first of the two calls has the effect.
            let _ = setpgid(command, command);
        }
        let mut keep = hooks.kept();
        keep.extend([channel.as_fd(), signals.as_fd()]);
        fds::keep_only(&keep);
        Self {
            command,
            group,
            limits,
            hooks,
            channel: Some(channel),
            signals,
            descendants,
            monitor: None,
            fate_query: FateQuery::default(),
            asked_fate: false,
            children: Vec::new(),
            time_limit: TimeLimit::NotStarted,
            reached: Vec::new(),
            end: None,
            signalled: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// Runs until the command has ended, and with `with_children` also its descendants.
    pub(super) fn run(mut self) -> io::Result<Ended> {
        if self.hooks.can_be_lost() {
            // Done while the child requests its lock; later it would delay the command.
            self.descendants.adopt(Some(self.command))?;
        } else if std::process::id() == 1 {
            // The kernel gives this process every orphan of its pid namespace, and no other process
            // reaps them. Without /proc it does not know them, but the command runs anyway.
            let _ = self.descendants.adopt(Some(self.command));
        }
        loop {
            while self.receive()? {}
            self.check_command()?;
            self.hooks.turn(self.end.is_none().then_some(self.command));
            if self.end.is_some() {
                // The child may have reported its lock and been killed since.
                while self.receive()? {}
            }
            self.check_lock()?;
            if let Some(end) = self.end.filter(|_| !self.waits_for_descendants()) {
                return self.finish(end);
            }
            let left = self.living()?;
            if let Some(end) = self.end.filter(|_| left.is_empty()) {
                return self.finish(end);
            }
            self.end_lost(&left);
            // Without `with_children`, the supervisor ignores the processes that the command leaves
            // behind.
            let left = if self.limits.with_children { left } else { Vec::new() };
            self.enforce_time_limit(&left);
            self.wait()?;
            self.pass_signals(&left)?;
        }
    }

    fn finish(&mut self, end: child::End) -> io::Result<Ended> {
        self.hooks.ended();
        // These signals arrived while the command ran, and would end this process once they are
        // unblocked.
        while self.signals.read_signal()?.is_some() {}
        ended(self.command, Reap::Now)?;
        Ok(self.ended(end))
    }

    fn living(&mut self) -> io::Result<Vec<Pid>> {
        let Self { command, fate_query, hooks, descendants, .. } = self;
        descendants.living(|pid| pid == *command || fate_query.is(pid) || hooks.is_daemon(pid))
    }

    fn waits_for_descendants(&self) -> bool {
        self.limits.with_children
            || self.monitor.as_ref().is_some_and(HoldMonitor::ends_descendants)
    }

    fn ended(&self, end: child::End) -> Ended {
        if let Some(lost) = self
            .monitor
            .as_ref()
            .filter(|monitor| monitor.ends_command())
            .and_then(HoldMonitor::lost)
        {
            return Ended::LockLost(Box::new(lost.clone()));
        }
        match (self.reached.last(), end) {
            (Some(signal), _) => Ended::TimeOver(*signal),
            (None, child::End::Exited(code)) => Ended::Exited(code),
            (None, child::End::Killed(signal)) => Ended::Signaled(signal),
        }
    }

    /// Reads one message of the child. Returns whether there may be more.
    fn receive(&mut self) -> io::Result<bool> {
        let Some(channel) = &self.channel else { return Ok(false) };
        match channel.receive() {
            Received::Nothing => return Ok(false),
            Received::End => self.channel = None,
            Received::Message(ChildMessage::NotBegun, _) => self.monitor = None,
            Received::Message(ChildMessage::Granted { token }, mut descriptors) => {
                if let Some(held) = held(token, &mut descriptors)? {
                    self.monitor = Some(HoldMonitor::new(held, self.limits.on_lost)?);
                    self.descendants.adopt(Some(self.command))?;
                    // A child that has ended does not need the message.
                    channel.send(&Ready, &[]);
                }
                self.children = descriptors;
                let deadline =
                    self.limits.max_run.and_then(|most| Instant::now().checked_add(most));
                self.time_limit = deadline.map_or(TimeLimit::NotStarted, TimeLimit::Running);
            }
        }
        Ok(true)
    }

    /// Checks whether the command has stopped or ended.
    fn check_command(&mut self) -> io::Result<()> {
        if self.end.is_none() {
            if let Some(signal) = stopped(self.command)?
                && self.group == Group::Callers
            {
                stop_too(signal)?;
            }
            self.end = ended(self.command, Reap::Later)?;
            if self.end.is_some_and(|end| end != child::End::Killed(libc::SIGKILL)) {
                // It had ended before SIGKILL could end it.
                self.reached.retain(|signal| *signal != Signal::SIGKILL);
            }
        }
        Ok(())
    }

    /// Passes on the signals that arrived.
    fn pass_signals(&mut self, left: &[Pid]) -> io::Result<()> {
        while let Some(info) = self.signals.read_signal()? {
            let number = i32::try_from(info.ssi_signo).unwrap_or(0);
            let Ok(signal) = Signal::try_from(number) else { continue };
            if signal == Signal::SIGCHLD || self.has_got(signal, &info) {
                continue;
            }
            // This process may have been stopped for a long time, perhaps since before the child
            // reported its lock. It must not continue a command that it is about to kill.
            while self.receive()? {}
            self.check_lock()?;
            if self.monitor.as_ref().is_some_and(|monitor| monitor.phase() == Phase::Killing) {
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

    /// Whether the command received the signal without the supervisor.
    fn has_got(&self, signal: Signal, info: &signalfd_siginfo) -> bool {
        if self.group == Group::Own {
            return false;
        }
        if info.ssi_code == libc::SI_KERNEL {
            return OF_TERMINAL.contains(&signal);
        }
        let sender = i32::try_from(info.ssi_pid).unwrap_or(0);
        // The command signalled its group, which includes us.
        sender == self.command.as_raw()
            // A shell continues the whole group.
            || signal == Signal::SIGCONT && !self.is_stopped()
    }

    fn is_stopped(&self) -> bool {
        run_state(self.command.as_raw().unsigned_abs()) == RunState::Stopped
    }

    /// Reads the deadline page, and asks for another one if the page has lost its writer. Until the
    /// command has started, the child itself checks the page.
    fn check_lock(&mut self) -> io::Result<()> {
        let Some(monitor) = self.monitor.as_mut().filter(|_| self.channel.is_none()) else {
            return Ok(());
        };
        let mut fate = self.fate_query.receive();
        // The present daemon or another process has killed the command.
        let killed = self.end == Some(child::End::Killed(libc::SIGKILL));
        if fate.is_none() && killed && !self.asked_fate && monitor.command_may_be_ended() {
            self.asked_fate = true;
            fate = self.hooks.ask(monitor.token());
        }
        match fate {
            Some(Fate::Held(page)) => monitor.replace_page(page),
            Some(Fate::Lost(why)) => monitor.report_lost(why),
            None => {}
        }
        let before = monitor.phase();
        if let Some(phase) = monitor.check()? {
            // A command that is killed was already reported when it was signalled to end.
            if let Some(lost) = monitor.lost().filter(|_| before == Phase::Held) {
                let is_refused = self.end.is_none()
                    && SignalRefused::by(&probe(self.command), self.command).is_some();
                self.hooks.lost(&LostHold { is_refused, ..lost.clone() });
            }
            match phase {
                // Only the command and its group, so that the command can end its children in its
                // own way. From here on the lock counts as lost, even if the engine returns.
                Phase::Ending => {
                    self.signalled.clear();
                    self.send(Signal::SIGTERM);
                    self.send(Signal::SIGCONT);
                }
                // Without SIGCONT: a process that is about to be killed must not continue first.
                Phase::Killing => {
                    self.send(Signal::SIGKILL);
                }
                Phase::Held | Phase::Warned => {}
            }
        }
        if self.end.is_none()
            && let Some(monitor) = self.monitor.as_ref()
            && let Some(sure) = monitor.orphaned_but_safe_for()
        {
            let token = monitor.token();
            self.fate_query.ask(sure, &|| self.hooks.ask(token));
        }
        Ok(())
    }

    /// Ends the descendants that the command left behind, and once it is time to kill, everything.
    fn end_lost(&mut self, left: &[Pid]) {
        match self.monitor.as_ref().map(HoldMonitor::phase) {
            Some(Phase::Killing) => {
                self.send(Signal::SIGKILL);
                let tops: Vec<Pid> =
                    std::iter::once(self.command).chain(left.iter().copied()).collect();
                let refused = descendants::kill(&tops, |pid| self.hooks.is_daemon(pid));
                refused.into_iter().for_each(|refused| self.report(refused));
            }
            Some(Phase::Ending) => {
                self.signal_descendants(left, Signal::SIGTERM);
            }
            _ => {}
        }
    }

    fn enforce_time_limit(&mut self, left: &[Pid]) {
        let now = Instant::now();
        match self.time_limit {
            TimeLimit::Running(deadline) if now >= deadline => {
                let kill_at = self.limits.kill_after.and_then(|grace| now.checked_add(grace));
                self.time_limit = TimeLimit::Signalled(kill_at);
                self.send_for_time(self.limits.signal);
                self.send(Signal::SIGCONT);
            }
            TimeLimit::Signalled(Some(kill_at)) if now >= kill_at => {
                self.time_limit = TimeLimit::Killed;
                self.signalled.clear();
                self.send_for_time(Signal::SIGKILL);
            }
            _ => {}
        }
        let signal = match self.time_limit {
            TimeLimit::NotStarted | TimeLimit::Running(_) => return,
            TimeLimit::Signalled(_) => self.limits.signal,
            TimeLimit::Killed => Signal::SIGKILL,
        };
        let has_reached = self.signal_descendants(left, signal);
        // If the command itself could not be signalled, a signal to its descendants did not end it.
        if has_reached && self.end.is_some() && !self.refused.contains(&self.command) {
            self.reached.push(signal);
        }
    }

    fn send_for_time(&mut self, signal: Signal) {
        if self.send(signal) && self.end.is_none() {
            self.reached.push(signal);
        }
    }

    /// Signals each descendant once. Returns whether the signal reached one of them.
    fn signal_descendants(&mut self, left: &[Pid], signal: Signal) -> bool {
        let mut has_reached = false;
        for pid in left {
            if !self.signalled.contains(pid) {
                let result = kill(*pid, signal);
                has_reached |= result.is_ok();
                if let Some(refused) = SignalRefused::by(&result.map_err(io::Error::from), *pid) {
                    self.report(refused);
                }
                let _ = kill(*pid, Signal::SIGCONT);
                self.signalled.push(*pid);
            }
        }
        has_reached
    }

    /// Signals the command, or its group. Returns whether the signal reached the command itself,
    /// which may belong to another user by now.
    fn send(&mut self, signal: Signal) -> bool {
        let leads = self.group == Group::Own && getpgid(Some(self.command)) == Ok(self.command);
        if self.group == Group::Own {
            // It succeeds if it reaches any process of the group.
            let _ = killpg(self.command, signal);
        }
        // It may have left the group that it was given.
        if !leads {
            let _ = kill(self.command, signal);
        }
        let probed = probe(self.command);
        if let Some(refused) = SignalRefused::by(&probed, self.command) {
            self.report(refused);
        }
        probed.is_ok()
    }

    /// Reports a process that cannot be signalled, once.
    fn report(&mut self, refused: SignalRefused) {
        if !self.refused.contains(&refused.pid) {
            self.refused.push(refused.pid);
            self.hooks.refused(&refused);
        }
    }

    /// Waits for an event, or until something is due.
    fn wait(&self) -> io::Result<()> {
        let due = match self.time_limit {
            TimeLimit::Running(due) | TimeLimit::Signalled(Some(due)) => {
                Some(due.saturating_duration_since(Instant::now()))
            }
            _ => None,
        };
        let phase = self.monitor.as_ref().map(HoldMonitor::phase);
        let look = match phase {
            Some(Phase::Killing) if self.refused.is_empty() => Some(LOOK_KILLING),
            Some(Phase::Killing) => Some(LOOK),
            // The hold may become safe again.
            Some(Phase::Warned) => Some(LOOK),
            _ => self.end.is_some().then_some(LOOK),
        };
        let others = self.fate_query.due().into_iter().chain(self.hooks.due());
        let timeout = due.into_iter().chain(look).chain(others).min();
        let begun = self.monitor.iter().filter(|_| self.channel.is_none());
        let polled = std::iter::once(self.signals.as_fd())
            .chain(self.channel.as_ref().map(AsFd::as_fd))
            .chain(begun.flat_map(HoldMonitor::polled))
            .chain(self.fate_query.polled())
            .chain(self.hooks.polled());
        let mut polled: Vec<_> = polled.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        fds::poll_within(&mut polled, timeout).map(drop)
    }
}

/// Whether this process may signal another one.
fn probe(pid: Pid) -> io::Result<()> {
    Ok(kill(pid, None)?)
}
