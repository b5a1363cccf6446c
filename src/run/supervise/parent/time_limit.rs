//! The time limit of a command: when the supervisor signals it, and when it kills it.

use std::time::Instant;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::Parent;

/// The state of the time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeLimit {
    /// The command waits for its lock, or has no limit.
    NotStarted,
    /// The command must end at this time.
    Running(Instant),
    /// The command was signalled, and is killed at this time.
    Signalled(Option<Instant>),
    /// It was killed.
    Killed,
}

impl Parent<'_> {
    pub(super) fn enforce_time_limit(&mut self, left: &[Pid]) {
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
}
