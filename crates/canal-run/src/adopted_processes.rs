//! The descendants of the command that are children of this process, and how to kill them.
//!
//! A subreaper adopts every descendant whose parent has ended. So while a descendant lives, this
//! process has a child: the descendant or one of its ancestors.

use std::io;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use canal_sys::pidfd::Pidfd;
use canal_sys::process::child::{Reap, become_subreaper, children_of, ended};
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
            let mut before = children_of(Pid::this())?;
            before.retain(|pid| Some(*pid) != command);
            self.before = Some(before);
        }
        Ok(())
    }

    /// Reaps the children that have ended, and returns the living descendants, without those that
    /// are known (the command itself, a daemon that also serves other clients).
    pub(super) fn living(&mut self, is_known: impl Fn(Pid) -> bool) -> io::Result<Vec<Pid>> {
        let Some(before) = &mut self.before else { return Ok(Vec::new()) };
        let mut children = children_of(Pid::this())?;
        children.retain(|pid| !is_known(*pid));
        children.retain(|pid| matches!(ended(*pid, Reap::Now), Ok(None)));
        // A descendant may get the pid of one that was reaped.
        before.retain(|pid| children.contains(pid));
        children.retain(|pid| !before.contains(pid));
        Ok(children)
    }
}

/// Kills `tops`, which are children of this process, and all their descendants. May miss a process
/// that is started or adopted meanwhile, so the caller repeats this until no child is left. Does
/// not touch `spared` processes and their descendants. Returns those that the kernel refuses to
/// kill.
pub(super) fn kill(tops: &[Pid], spared: impl Fn(Pid) -> bool) -> Vec<SignalRefused> {
    let spared = |pid: u32| spared(Pid::from_raw(pid.cast_signed()));
    let tops = tops.iter().map(|pid| pid.as_raw().unsigned_abs()).filter(|pid| !spared(*pid));
    let children = tops.filter_map(|pid| {
        let pidfd = Pidfd::open(pid).ok()?;
        // Read after the pidfd was opened: another process with the same pid has another parent.
        (parent(pid) == Some(std::process::id())).then_some((pid, pidfd))
    });
    kill_tree(children.collect(), spared)
}

/// Kills a process that need not be a child of this one, and the descendants found below it.
pub(crate) fn kill_with_descendants(top: &Pidfd) {
    let Some(pid) = top.pid().filter(|pid| *pid != 0) else { return };
    let Ok(top) = top.try_clone() else { return };
    kill_tree(vec![(pid, top)], |_| false);
}

/// Returns the refusals of the kernel: a process may have changed its user since it began.
fn kill_tree(mut tree: Vec<(u32, Pidfd)>, spared: impl Fn(u32) -> bool) -> Vec<SignalRefused> {
    add_descendants(&mut tree, spared);
    let refused = |(pid, process): &(u32, Pidfd)| {
        let pid = Pid::from_raw(pid.cast_signed());
        SignalRefused::by(&process.signal(Signal::SIGKILL), pid)
    };
    tree.iter().filter_map(refused).collect()
}
