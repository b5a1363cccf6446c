//! What the supervisor asks of its caller.

use nix::unistd::Pid;

use crate::run::LostHold;
use crate::sys::deadline::{Reader, Why};

/// What stands beside a command while it runs, besides the parent itself.
pub trait SupervisorHooks {
    /// Whether it is known already that the hold will be one that can be lost.
    fn can_be_lost(&self) -> bool {
        false
    }

    /// The lock is lost, or may be from now on: to be told to people. Called once for each loss,
    /// before anything is done to the command.
    fn lost(&mut self, lost: &LostHold);

    /// Whether a process is a daemon that some client started: it serves others as well, so that it
    /// is neither waited for nor ended.
    fn is_daemon(&self, pid: Pid) -> bool;

    /// Asks the daemon that there is now what became of the hold with this token. Called where it
    /// may take its time.
    fn ask(&self, token: u64) -> Option<Fate>;
}

/// What became of a hold whose deadline page nobody writes any more.
#[derive(Debug)]
pub enum Fate {
    /// The daemon that there is now has taken it over, and writes this page.
    Held(Reader),
    /// It is lost.
    Lost(Why),
}
