//! From a process to those it descends from.

use super::stat::Stat;

/// An ancestor of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ancestor {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub started: u64,
}

/// The ancestors of the process that has this number now, its parent first, as far as they are seen
/// from here. A process whose parent has ended has a new one (init or a subreaper). Whose number it
/// is the caller knows by a pidfd, before and after.
///
/// Numbers that are reused meanwhile mislead nobody: a child that still has the same parent after
/// that was looked at had it all the while, because the kernel gives it another one the moment the
/// old one ends.
pub fn ancestors(pid: u32) -> impl Iterator<Item = Ancestor> {
    let first = Stat::read(pid).map(|stat| Ancestor { pid, started: stat.started });
    std::iter::successors(first.and_then(parent_of), |child| parent_of(*child))
}

fn parent_of(child: Ancestor) -> Option<Ancestor> {
    let parent_now = || {
        let stat = Stat::read(child.pid)?;
        (stat.started == child.started && child.started != 0).then_some(stat.parent)
    };
    let pid = parent_now()?;
    if pid == 0 {
        return None;
    }
    let started = Stat::read(pid)?.started;
    (parent_now()? == pid).then_some(Ancestor { pid, started })
}
