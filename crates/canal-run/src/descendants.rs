//! The descendants of the command that are children of this process, and how to kill them.
//!
//! A subreaper adopts every descendant whose parent has ended. So while a descendant lives, this
//! process has a child: the descendant or one of its ancestors.

use std::collections::BTreeSet;
use std::io;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use canal_sys::pidfd::Pidfd;
use canal_sys::process::child::{Reap, become_subreaper, children, children_of, ended};
use canal_sys::process::user::SignalRefused;
use canal_sys::process::{add_descendants, parent};

/// Which children are descendants of the command.
#[derive(Debug, Default)]
pub(super) struct Descendants {
    /// Children that this process had before the command. `None` while this process adopts no
    /// orphans.
    before: Option<Vec<Pid>>,
}

impl Descendants {
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

/// Kills `tops`, which are children of this process, and all their descendants, from the top down.
/// May miss a process that is started or adopted meanwhile, so the caller repeats this until no
/// child is left. Does not touch `spared` processes and their descendants. Returns those that the
/// kernel refuses to kill.
pub(super) fn kill(tops: &[Pid], mut spared: impl FnMut(Pid) -> bool) -> Vec<SignalRefused> {
    let this = Pid::this();
    let mut refused = Vec::new();
    let mut seen = BTreeSet::new();
    let mut left: Vec<(Pid, Pid)> = tops.iter().rev().map(|pid| (*pid, this)).collect();
    while let Some((pid, above)) = left.pop() {
        if !seen.insert(pid) || spared(pid) {
            continue;
        }
        let below = children_of(pid);
        refused.extend(kill_one(pid, above));
        left.extend(below.into_iter().rev().map(|child| (child, pid)));
    }
    refused
}

/// Kills a process that need not be a child of this one, and the descendants found below it.
pub(crate) fn kill_with_descendants(top: &Pidfd) {
    let Some(pid) = top.pid().filter(|pid| *pid != 0) else { return };
    let Ok(top) = top.try_clone() else { return };
    let mut tree = vec![(pid, top)];
    add_descendants(&mut tree, |_| false);
    for (_, process) in tree {
        // The kernel may refuse: the process may have changed its user since it began.
        let _ = process.signal(Signal::SIGKILL);
    }
}

/// Kills the process that was found below `above`, unless its pid belongs to another process by
/// now: its parent must still be `above`, or be this process, which adopts orphans. Returns the
/// refusal of the kernel: the process may have changed its user since it began.
fn kill_one(pid: Pid, above: Pid) -> Option<SignalRefused> {
    let number = |pid: Pid| pid.as_raw().unsigned_abs();
    let pidfd = Pidfd::open(number(pid)).ok()?;
    // Read after the pidfd was opened: another process with the same pid has other parents.
    let parent = parent(number(pid));
    if parent == Some(number(above)) || parent == Some(std::process::id()) {
        return SignalRefused::by(&pidfd.signal(Signal::SIGKILL), pid);
    }
    None
}
