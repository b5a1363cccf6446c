//! The signals that the supervisor sends, and those that it passes on.

use std::io;

use nix::libc::{self, signalfd_siginfo};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getpgid};

use crate::sys::process::{RunState, run_state};

use super::{Group, Parent};
use crate::run::supervise::forwarded_signals::OF_TERMINAL;
use crate::run::supervise::hold_monitor::Phase;

impl Parent<'_> {
    /// Signals each descendant once.
    pub(super) fn signal_descendants(&mut self, left: &[Pid], signal: Signal) {
        for pid in left {
            if !self.signalled.contains(pid) {
                let _ = kill(*pid, signal);
                let _ = kill(*pid, Signal::SIGCONT);
                self.signalled.push(*pid);
            }
        }
    }

    /// Signals the command, or its group. Errors are ignored: the command may belong to another
    /// user by now, or be a zombie.
    pub(super) fn send(&self, signal: Signal) {
        let leads = self.group == Group::Own && getpgid(Some(self.command)) == Ok(self.command);
        if self.group == Group::Own {
            let _ = killpg(self.command, signal);
        }
        // It may have left the group that it was given.
        if !leads {
            let _ = kill(self.command, signal);
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
            // reported its lock. A command that is about to be killed must not be continued first.
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
