//! The signals that the supervisor sends, and those that it passes on.

use std::io;

use nix::libc::{self, signalfd_siginfo};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getpgid};

use crate::sys::process::{RunState, run_state};
use crate::sys::signals::SignalRefused;

use super::{Group, Parent};
use crate::run::supervise::forwarded_signals::OF_TERMINAL;
use crate::run::supervise::hold_monitor::Phase;

/// Whether this process may signal another one.
pub(super) fn probe(pid: Pid) -> io::Result<()> {
    Ok(kill(pid, None)?)
}

impl Parent<'_> {
    /// Signals each descendant once. Returns whether the signal reached one of them.
    pub(super) fn signal_descendants(&mut self, left: &[Pid], signal: Signal) -> bool {
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
    pub(super) fn send(&mut self, signal: Signal) -> bool {
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
    pub(super) fn report(&mut self, refused: SignalRefused) {
        if !self.refused.contains(&refused.pid) {
            self.refused.push(refused.pid);
            self.hooks.refused(&refused);
        }
    }

    pub(super) fn pass_signals(&mut self, left: &[Pid]) -> io::Result<()> {
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
}
