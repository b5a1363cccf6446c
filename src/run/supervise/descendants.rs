//! The descendants of the command that are children of this process.
//!
//! A subreaper adopts every descendant whose parent has ended. So while a descendant lives, this
//! process has a child: the descendant or one of its ancestors.

use std::io;

use nix::unistd::Pid;

use crate::sys::process::become_subreaper;
use crate::sys::process::child::{Reap, children, ended};

/// Which children are descendants of the command.
#[derive(Debug)]
pub(super) struct Descendants {
    /// Children that this process had before the command. `None` while this process adopts no
    /// orphans.
    before: Option<Vec<Pid>>,
}

impl Descendants {
    /// Adopts no process yet.
    pub(super) fn unknown() -> Self {
        Self { before: None }
    }

    /// Adopts orphans of the command from now on. `command` is its process, if there is one, and
    /// must not have begun yet.
    pub(super) fn adopt(&mut self, command: Option<Pid>) -> io::Result<()> {
        if self.before.is_none() {
            become_subreaper()?;
            let mut before = children()?;
            before.retain(|pid| Some(*pid) != command);
            self.before = Some(before);
        }
        Ok(())
    }

    /// Reaps the children that have ended, and returns the living descendants, without those that
    /// are known (the command itself, a daemon that also serves other clients).
    pub(super) fn living(&mut self, is_known: impl Fn(Pid) -> bool) -> io::Result<Vec<Pid>> {
        let Some(before) = &mut self.before else { return Ok(Vec::new()) };
        let mut children = children()?;
        children.retain(|pid| !is_known(*pid));
        children.retain(|pid| matches!(ended(*pid, Reap::Now), Ok(None)));
        // A descendant may get the pid of one that was reaped.
        before.retain(|pid| children.contains(pid));
        children.retain(|pid| !before.contains(pid));
        Ok(children)
    }
}
