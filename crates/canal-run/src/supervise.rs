//! Supervises the command as its parent.
//!
//! The supervisor forks first; the child takes the lock and becomes the command. The supervisor
//! limits the command's time from the grant on, passes on signals, and ends as the command ended.
//! It ends all processes of the command when the hold is lost
//! ([`hold_monitor`](canal_lock::client::hold_monitor)): the second line of defence after the
//! daemon, and the only one if that is stopped or gone.
//!
//! Invariant: the supervisor owns nothing, so its death frees nothing. While the child still waits,
//! it ends with its supervisor and so leaves the queue.
//!
//! Invariant: a pid is signalled only while it belongs to a child that was not reaped, or to the
//! group of such a child.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{self, SIGCHLD, SIGCONT, SIGKILL, SIGTERM};
use nix::sys::signal::{SigSet, kill, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, getpgid, setpgid};

use canal_lock::client::Fate;
use canal_lock::client::channel::{End, Received, channel};
use canal_lock::client::hold_monitor::{HoldMonitor, LostHold, Phase};
use canal_protocol::OnLost;
use canal_sys::deadline_page::Reader;
use canal_sys::process::child::{self, Reap, ended, fork, stopped};
use canal_sys::process::user::SignalRefused;
use canal_sys::{fds, signals};

use super::adopted_processes::{self, Descendants};
use super::become_command::{ChildChannel, ChildMessage, Ready};
use super::exit_code::Ended;
use super::fate_query::FateQuery;
use super::nodes::{Line, OverNodes};
use super::signals_passed_on::{PASSED_ON, has_got, stop_too};

/// The time from the signal of `--max-run` to SIGKILL, without `--kill-after`.
pub const KILL_AFTER_DEFAULT: Duration = Duration::from_secs(10);

/// The limits of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long it may run, from the moment it has the lock; `None` without a limit. The time of a
    /// suspend does not count.
    pub max_run: Option<Duration>,
    /// The time from `signal` to SIGKILL; `None` if SIGKILL is never sent.
    pub kill_after: Option<Duration>,
    /// The signal that ends a command that ran too long. SIGCONT follows, in case it is stopped.
    pub signal: Signal,
    /// Whether to stay until the command's descendants have ended too; `max_run` also applies to
    /// them.
    pub with_children: bool,
    /// What happens to the command if the lock is lost, which is only possible over an engine.
    pub on_lost: OnLost,
}

/// The supervisor's calls to its caller while the command runs.
pub trait SupervisorHooks {
    /// Whether it is already known that the hold can be lost.
    fn can_be_lost(&self) -> bool;

    /// Reports that the lock is lost, or may be lost from now on. Called once for each loss, before
    /// the supervisor acts on the command.
    fn lost(&self, lost: &LostHold);

    /// Reports that the kernel refuses to signal the command, or a process that it started. Called
    /// once for each process.
    fn refused(&self, refused: &SignalRefused);

    /// Whether a process is a daemon that a client started. It also serves other clients, so the
    /// supervisor neither waits for it nor ends it.
    fn is_daemon(&self, pid: Pid) -> bool;

    /// Called when the command has run for too long, before it is signalled for that.
    fn overrun(&self);

    /// Called when the command has ended, before its process is reaped. Until then, the daemon can
    /// read its exit status on every kernel.
    fn ended(&self);

    /// Asks the present daemon what happened to the hold with this token. Called in a process that
    /// may block.
    fn ask(&self, token: u64) -> Option<Fate>;

    /// The descriptors that the caller needs while the command runs.
    fn kept(&self) -> Vec<BorrowedFd<'_>>;

    /// Prints a line of the coordinator.
    fn say(&self, line: &Line);
}

/// How often to check the remaining descendants, in addition to each end of one: a process can
/// become a daemon without a signal.
const LOOK: Duration = Duration::from_secs(1);

/// The same while killing them: new ones can appear without a signal.
const LOOK_KILLING: Duration = Duration::from_millis(20);

/// Forks. The child calls `child`, which takes the lock and becomes the command with
/// [`become_command`](super::become_command()), or returns the exit code to end with. The parent
/// enforces the limits, passes signals on, and returns when the child has ended. `nodes` is the
/// coordinator of a lock over nodes, which the parent keeps running.
///
/// Call this before opening or starting anything: this process must have one thread, and the parent
/// closes all descriptors but standard error.
///
/// # Errors
/// The fork, or a preparation for it, failed; nothing was started.
pub fn supervise(
    limits: &Limits,
    hooks: &dyn SupervisorHooks,
    nodes: Option<&mut OverNodes>,
    child: impl FnOnce(ChildChannel) -> u8,
) -> io::Result<Ended> {
    let (ours, childs) = channel()?;
    let childs = ChildChannel(childs);
    // Without a controlling terminal, `/dev/tty` cannot be opened.
    let leads_group = File::open("/dev/tty").is_err();
    let mut descendants = Descendants::default();
    if limits.with_children {
        descendants.adopt(None)?;
    }
    // All this comes before the fork, so that no signal and no end is missed.
    let watched: SigSet = PASSED_ON.into_iter().chain([SIGCHLD]).collect();
    let blocked = signals::block(&watched);
    let ignored_ends = signals::set_default(SIGCHLD)?;
    let signals = SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let forked = fork();
    if let Ok(Some(command)) = forked {
        // Their descriptors belong to the child.
        drop((childs, child));
        if leads_group {
            // The child does the same; the first of the two calls has the effect.
            let _ = setpgid(command, command);
        }
        let mut keep = hooks.kept();
        keep.extend(nodes.iter().flat_map(|nodes| nodes.kept()));
        keep.extend([ours.as_fd(), signals.as_fd()]);
        fds::keep_only(&keep);
        let supervisor = Supervisor {
            command,
            leads_group,
            limits: *limits,
            hooks,
            nodes,
            channel: Some(ours),
            signals,
            descendants,
            monitor: None,
            fate_query: FateQuery::default(),
            asked_fate: false,
            children: Vec::new(),
            time_signal: None,
            due: None,
            reached: Vec::new(),
            end: None,
            signalled: Vec::new(),
            refused: Vec::new(),
        };
        let ended = supervisor.run();
        blocked.restore();
        return ended;
    }
    drop((ours, signals));
    if ignored_ends {
        signals::set_ignored(SIGCHLD)?;
    }
    blocked.restore();
    forked?;
    // Until the lock is granted: a place in the queue must not outlast the job that waits.
    child::end_with_parent(childs.0.as_fd())?;
    if leads_group {
        // The parent does the same; the first of the two calls has the effect.
        let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
    }
    std::process::exit(child(childs).into())
}

/// The state of the supervisor.
struct Supervisor<'a> {
    command: Pid,
    /// Whether the command leads a process group, so that its descendants can be ended with it.
    /// With a controlling terminal, it stays in the caller's group, with the supervisor: there it
    /// can read from the terminal, and gets Ctrl-C and Ctrl-Z directly.
    leads_group: bool,
    limits: Limits,
    hooks: &'a dyn SupervisorHooks,
    nodes: Option<&'a mut OverNodes>,
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
    /// The last signal of the time limit: that of [`Limits::signal`], then SIGKILL.
    time_signal: Option<Signal>,
    /// When the next signal of the time limit is sent.
    due: Option<Instant>,
    /// The signals of the time limit that reached the command, or after its end, its descendants.
    reached: Vec<Signal>,
    end: Option<child::End>,
    /// Descendants that were already signalled.
    signalled: Vec<Pid>,
    /// Processes that cannot be signalled.
    refused: Vec<Pid>,
}

impl Supervisor<'_> {
    /// Runs until the command has ended, and with `with_children` also its descendants.
    fn run(mut self) -> io::Result<Ended> {
        if self.nodes.is_some() || self.hooks.can_be_lost() {
            // Done while the child requests its lock; later it would delay the command.
            self.descendants.adopt(Some(self.command))?;
        } else if std::process::id() == 1 {
            // The kernel gives this process every orphan of its pid namespace, and no other process
            // reaps them. Without /proc it does not know them, but the command runs anyway.
            let _ = self.descendants.adopt(Some(self.command));
        }
        loop {
            self.receive()?;
            self.check_command()?;
            if let Some(nodes) = &mut self.nodes {
                let lines = nodes.turn(self.end.is_none().then_some(self.command));
                lines.iter().for_each(|line| self.hooks.say(line));
            }
            if self.end.is_some() {
                // The child may have reported its lock and been killed since.
                self.receive()?;
            }
            self.check_lock()?;
            let ends_descendants = self.monitor.as_ref().is_some_and(HoldMonitor::ends_descendants);
            let waits = self.end.is_none() || self.limits.with_children || ends_descendants;
            let left = if waits { self.living()? } else { Vec::new() };
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
        if let Some(monitor) = &self.monitor
            && monitor.ends_command()
            && let Some(lost) = monitor.lost()
        {
            return Ok(Ended::LockLost(Box::new(lost.clone())));
        }
        Ok(match (self.reached.last(), end) {
            (Some(signal), _) => Ended::TimeOver(*signal),
            (None, child::End::Exited(code)) => Ended::Exited(code),
            (None, child::End::Killed(signal)) => Ended::Signaled(signal),
        })
    }

    fn living(&mut self) -> io::Result<Vec<Pid>> {
        let Self { command, fate_query, hooks, nodes, descendants, .. } = self;
        descendants
            .living(|pid| pid == *command || fate_query.is(pid) || is_apart(pid, *hooks, nodes))
    }

    /// Reads the messages of the child.
    fn receive(&mut self) -> io::Result<()> {
        while let Some(channel) = &self.channel {
            match channel.receive() {
                Received::Nothing => break,
                Received::End => self.channel = None,
                Received::Message(ChildMessage::NotBegun, _) => self.monitor = None,
                Received::Message(ChildMessage::Granted { token }, mut descriptors) => {
                    if let Some(token) = token.filter(|_| descriptors.len() >= 2) {
                        let (line, page) = (descriptors.remove(1), descriptors.remove(0));
                        let page = Reader::open(page, line)?;
                        self.monitor = Some(HoldMonitor::new(page, token, self.limits.on_lost)?);
                        self.descendants.adopt(Some(self.command))?;
                        // A child that has ended does not need the message.
                        channel.send(&Ready, &[]);
                    }
                    self.children = descriptors;
                    let max_run = self.limits.max_run;
                    self.due = max_run.and_then(|most| Instant::now().checked_add(most));
                }
            }
        }
        Ok(())
    }

    /// Checks whether the command has stopped or ended.
    fn check_command(&mut self) -> io::Result<()> {
        if self.end.is_none() {
            if let Some(signal) = stopped(self.command)?
                && !self.leads_group
            {
                stop_too(signal)?;
            }
            self.end = ended(self.command, Reap::Later)?;
            if self.end.is_some_and(|end| end != child::End::Killed(libc::SIGKILL)) {
                // It had ended before SIGKILL could end it.
                self.reached.retain(|signal| *signal != SIGKILL);
            }
        }
        Ok(())
    }

    /// Passes on the signals that arrived.
    fn pass_signals(&mut self, left: &[Pid]) -> io::Result<()> {
        while let Some(info) = self.signals.read_signal()? {
            let number = i32::try_from(info.ssi_signo).unwrap_or(0);
            let Ok(signal) = Signal::try_from(number) else { continue };
            if signal == SIGCHLD || has_got(self.command, self.leads_group, signal, &info) {
                continue;
            }
            // This process may have been stopped for a long time, perhaps since before the child
            // reported its lock. It must not continue a command that it is about to kill.
            self.receive()?;
            self.check_lock()?;
            if self.monitor.as_ref().is_some_and(|monitor| monitor.phase() == Phase::Killing) {
                continue;
            }
            self.send(signal);
            if self.end.is_some() {
                left.iter().for_each(|pid| _ = kill(*pid, signal));
            }
        }
        Ok(())
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
            fate = self.hooks.ask(monitor.token);
        }
        if let Some(fate) = fate {
            monitor.learn(fate);
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
                    self.send(SIGTERM);
                    self.send(SIGCONT);
                }
                // Without SIGCONT: a process that is about to be killed must not continue first.
                Phase::Killing => _ = self.send(SIGKILL),
                Phase::Held | Phase::Warned => {}
            }
        }
        if self.end.is_none()
            && let Some(monitor) = self.monitor.as_ref()
            && let Some(sure) = monitor.orphaned_but_safe_for()
        {
            let token = monitor.token;
            self.fate_query.ask(sure, &|| self.hooks.ask(token));
        }
        Ok(())
    }

    /// Ends the descendants that the command left behind, and once it is time to kill, everything.
    fn end_lost(&mut self, left: &[Pid]) {
        match self.monitor.as_ref().map(HoldMonitor::phase) {
            Some(Phase::Killing) => {
                self.send(SIGKILL);
                let tops = [&[self.command], left].concat();
                let refused =
                    adopted_processes::kill(&tops, |pid| is_apart(pid, self.hooks, &self.nodes));
                refused.into_iter().for_each(|refused| self.report(refused));
            }
            Some(Phase::Ending) => _ = self.signal_descendants(left, SIGTERM),
            _ => {}
        }
    }

    fn enforce_time_limit(&mut self, left: &[Pid]) {
        let now = Instant::now();
        if self.due.take_if(|due| now >= *due).is_some() {
            if self.time_signal.is_none() {
                self.due = self.limits.kill_after.and_then(|grace| now.checked_add(grace));
                // Earlier than the signal: the daemon may learn of the end at once.
                if probe(self.command).is_ok() {
                    self.hooks.overrun();
                }
                self.time_signal = Some(self.limits.signal);
                self.send_for_time(self.limits.signal);
                self.send(SIGCONT);
            } else {
                self.time_signal = Some(SIGKILL);
                self.signalled.clear();
                self.send_for_time(SIGKILL);
            }
        }
        let Some(signal) = self.time_signal else { return };
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
                let _ = kill(*pid, SIGCONT);
                self.signalled.push(*pid);
            }
        }
        has_reached
    }

    /// Signals the command, or its group. Returns whether the signal reached the command itself,
    /// which may belong to another user by now.
    fn send(&mut self, signal: Signal) -> bool {
        let leads = self.leads_group && getpgid(Some(self.command)) == Ok(self.command);
        if self.leads_group {
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
        let due = self.due.map(|due| due.saturating_duration_since(Instant::now()));
        let look = match self.monitor.as_ref().map(HoldMonitor::phase) {
            Some(Phase::Killing) if self.refused.is_empty() => Some(LOOK_KILLING),
            // A warning may end, because the hold may become safe again.
            Some(Phase::Killing | Phase::Warned) => Some(LOOK),
            _ => self.end.is_some().then_some(LOOK),
        };
        let nodes = self.nodes.as_deref();
        let others = self.fate_query.due().into_iter().chain(nodes.and_then(OverNodes::due));
        let timeout = due.into_iter().chain(look).chain(others).min();
        let begun = self.monitor.iter().filter(|_| self.channel.is_none());
        let polled = std::iter::once(self.signals.as_fd())
            .chain(self.channel.as_ref().map(AsFd::as_fd))
            .chain(begun.flat_map(HoldMonitor::polled))
            .chain(self.fate_query.polled())
            .chain(nodes.and_then(OverNodes::polled));
        fds::wait_readable(polled, timeout)
    }
}

/// Whether a process is neither the command's nor this one's: a daemon that also serves other
/// clients, or part of a coordinator.
fn is_apart(pid: Pid, hooks: &dyn SupervisorHooks, nodes: &Option<&mut OverNodes>) -> bool {
    hooks.is_daemon(pid) || nodes.as_ref().is_some_and(|nodes| nodes.is_part(pid))
}

/// Whether this process may signal another one.
fn probe(pid: Pid) -> io::Result<()> {
    Ok(kill(pid, None)?)
}
