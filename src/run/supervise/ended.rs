//! How a supervised command ended.

use nix::sys::signal::Signal;

use crate::run::{LostHold, OwnCode};
use crate::sys::signals;

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With an exit code: the command's, or canal's own if the command was never run.
    Exited(u8),
    /// By a signal.
    Signaled(i32),
    /// It ran too long and was ended; this was the last signal that reached it.
    TimeOver(Signal),
    /// The lock was lost, and the command was ended for that, or could not be signalled.
    LockLost(Box<LostHold>),
}

impl Ended {
    /// Passes the end on: returns the exit code to end with, or ends this process by the same
    /// signal (without a second core dump).
    #[must_use]
    pub fn pass_on(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::TimeOver(_) => OwnCode::TimeOver.number(),
            Self::LockLost(_) => OwnCode::LockLost.number(),
            Self::Signaled(signal) => signals::die_by(signal),
        }
    }
}
