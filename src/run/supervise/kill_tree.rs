//! Killing the command with all that it started.

use std::collections::BTreeSet;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::sys::child::children_of;
use crate::sys::pidfd::Pidfd;
use crate::sys::process::parent;

/// Kills everything below `tops`, which are children of this process, from the top down. What
/// starts or is adopted at the same time may be missed: to be done again until no child is left.
/// `spared` are not touched, nor what is below them.
pub(super) fn kill(tops: &[Pid], mut spared: impl FnMut(Pid) -> bool) {
    let this = Pid::this();
    let mut seen = BTreeSet::new();
    let mut left: Vec<(Pid, Pid)> = tops.iter().rev().map(|pid| (*pid, this)).collect();
    while let Some((pid, above)) = left.pop() {
        if !seen.insert(pid) || spared(pid) {
            continue;
        }
        let below = children_of(pid);
        kill_one(pid, above);
        left.extend(below.into_iter().rev().map(|child| (child, pid)));
    }
}

/// Kills a process if it is, by now, the one that was found below `above`: it still is, or this
/// process adopted it.
fn kill_one(pid: Pid, above: Pid) {
    let number = |pid: Pid| pid.as_raw().unsigned_abs();
    let Ok(pidfd) = Pidfd::open(number(pid)) else { return };
    // After it was opened: another process under the same number has other parents.
    let parent = parent(number(pid));
    if parent == Some(number(above)) || parent == Some(std::process::id()) {
        // It may refuse: another user's since it began.
        let _ = pidfd.signal(Signal::SIGKILL);
    }
}
