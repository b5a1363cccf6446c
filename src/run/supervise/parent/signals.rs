//! The signals that the supervisor sends.

use std::io;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getpgid};

use crate::sys::signals::SignalRefused;

use super::{Group, Parent};

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
}
