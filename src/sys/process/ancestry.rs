//! Finds the ancestors of a process.

use super::stat::Stat;

/// An ancestor of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ancestor {
    /// Its pid.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub started: u64,
}

/// The ancestors of the process that has this pid now, its parent first, as far as they are visible
/// from here. A process whose parent has ended has a new parent (init or a subreaper). The caller
/// checks with a pidfd, before and after, that the pid belongs to the process it means.
///
/// Pids that are reused meanwhile do no harm. A child that still has the same parent after the
/// parent was read had this parent all the time, because the kernel gives a child a new parent the
/// moment the old parent ends.
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
