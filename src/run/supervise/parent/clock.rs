//! The time limit of a command: when the supervisor signals it, and when it kills it.

use std::time::Instant;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::Parent;

/// The state of the time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clock {
    /// The command waits for its lock, or may run for ever.
    Stands,
    /// The command must end at this time.
    Runs(Instant),
    /// The command was signalled, and is killed at this time.
    Over(Option<Instant>),
    /// It was killed.
    Killed,
}

impl Parent<'_> {
    pub(super) fn keep_time(&mut self, left: &[Pid]) {
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
}
