//! Finds all processes, the ancestors of a process, and the processes that it started.

use std::collections::BTreeSet;
use std::{fs, io};

use nix::unistd::{Pid, getpgid};

use super::child::children_of;
use super::state::{Stat, parent};
use crate::kernel;
use crate::pidfd::Pidfd;

/// The pids of all processes of our pid namespace and of those below it. A process that lives
/// during the whole call is included.
///
/// # Errors
/// /proc belongs to another namespace, or hides processes of other users.
pub fn all() -> io::Result<Vec<u32>> {
    simulated!(|kernel| Ok(kernel.pids()));
    if fs::metadata("/proc/1").is_err() {
        let text = "/proc does not show all processes";
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    visible()
}

/// Like [`all`], without the processes of other users if /proc hides those.
///
/// # Errors
/// /proc belongs to another namespace.
pub fn visible() -> io::Result<Vec<u32>> {
    simulated!(|kernel| Ok(kernel.pids()));
    let own = fs::read_link("/proc/self")?;
    if own.to_str() != Some(&std::process::id().to_string()) {
        let text = "/proc does not show the processes of this pid namespace";
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    kernel::pids()
}

/// The visible ancestors of the process that has this pid now, its parent first. A process whose
/// parent has ended has a new parent (init or a subreaper). The caller checks with a pidfd, before
/// and after, that the pid belongs to the process it means.
///
/// Pids that are reused meanwhile do no harm. If a child still has the same parent after the parent
/// was read, it had this parent all the time, because the kernel gives a child a new parent the
/// moment the old one ends.
pub fn ancestors(pid: u32) -> impl Iterator<Item = u32> {
    let first = Stat::read(pid).and_then(|stat| parent_of((pid, stat.started)));
    std::iter::successors(first, |child| parent_of(*child)).map(|(pid, _)| pid)
}

/// The parent of a process that has this pid and started at this time, in the same form.
fn parent_of((child, child_started): (u32, u64)) -> Option<(u32, u64)> {
    let parent_now = || {
        let stat = Stat::read(child)?;
        (stat.started == child_started && child_started != 0).then_some(stat.parent)
    };
    let pid = parent_now().filter(|pid| *pid != 0)?;
    let started = Stat::read(pid)?.started;
    (parent_now()? == pid).then_some((pid, started))
}

/// Adds the descendants of these processes, except the `spared` ones and their descendants. Each
/// added process was, after its pidfd was opened, the child of a process that was already in the
/// list. A process that starts or is adopted meanwhile may be missed, so the caller repeats this.
pub fn add_descendants(found: &mut Vec<(u32, Pidfd)>, spared: impl Fn(u32) -> bool) {
    let mut seen: BTreeSet<u32> = found.iter().map(|(pid, _)| *pid).collect();
    let mut at = 0;
    while let Some((above, pidfd)) = found.get(at) {
        let below = children_of(Pid::from_raw(above.cast_signed())).unwrap_or_default();
        let above_lives = || pidfd.pid() == Some(*above);
        let mut more = Vec::new();
        for pid in below.into_iter().map(|pid| pid.as_raw().unsigned_abs()) {
            if seen.contains(&pid) || spared(pid) {
                continue;
            }
            let Ok(child) = Pidfd::open(pid) else { continue };
            if parent(pid) == Some(*above) && child.pid() == Some(pid) && above_lives() {
                seen.insert(pid);
                more.push((pid, child));
            }
        }
        found.extend(more);
        at += 1;
    }
}

/// Adds the orphans in the process group that `leader`, one of these processes, leads: members that
/// init or a subreaper has adopted. The other members of a shell's pipeline are not orphans: they
/// have the same parent as the leader, or descend from such a process. A canal that supervises the
/// leader starts no pipeline, so any other child of it in the group is one that it adopted.
pub fn add_orphans_of_group(
    found: &mut Vec<(u32, Pidfd)>,
    leader: u32,
    spared: impl Fn(u32) -> bool,
) {
    let group = |pid: u32| getpgid(Some(Pid::from_raw(pid.cast_signed()))).ok();
    let led = Some(Pid::from_raw(leader.cast_signed()));
    let leads = || found.iter().any(|(pid, it)| *pid == leader && it.pid() == Some(leader));
    if group(leader) != led || !leads() {
        return;
    }
    let program = |pid: &str| fs::read_link(format!("/proc/{pid}/exe")).ok();
    let is_canal =
        |pid: &u32| program(&pid.to_string()).is_some_and(|it| Some(it) == program("self"));
    let job = parent(leader).filter(|above| !is_canal(above));
    let is_orphan = |pid: u32| {
        let above = parent(pid);
        pid != leader
            && group(pid) == led
            && above != job
            && above.is_some_and(|it| group(it) != led)
    };
    let mut orphans = Vec::new();
    for pid in visible().unwrap_or_default() {
        if !is_orphan(pid) || spared(pid) || found.iter().any(|(it, _)| *it == pid) {
            continue;
        }
        let Ok(pidfd) = Pidfd::open(pid) else { continue };
        // The kernel does not reuse the number of a group while the group has a member.
        if is_orphan(pid) && pidfd.pid() == Some(pid) && leads() {
            orphans.push((pid, pidfd));
        }
    }
    found.extend(orphans);
}
