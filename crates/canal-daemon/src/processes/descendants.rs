//! The processes that run under a hold, apart from its owner. The daemon kills them when the hold
//! is lost.
//!
//! `canal run` ends everything that its command started. If `canal run` itself was killed, the
//! daemon finds the processes by what they inherited: `CANAL_HOLD` in the environment, and the
//! write end of the hold's FIFO. A process that has dropped both is found only through its parent.
//!
//! These marks stay when a process leaves its group, as daemons do. A cgroup would need rights that
//! most users lack.
//!
//! Invariant: the daemon signals a process only if it had one of these marks after its pidfd was
//! opened, or was then a child of a process that is signalled.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::Path;

use nix::sys::signal::Signal;

use crate::processes::fifo::fifo_of;
use crate::processes::holder::Holder;
use canal_core::Tag;
use canal_protocol::HOLD_VARIABLE;
use canal_sys::pidfd::Pidfd;
use canal_sys::process::{self, OwnProgram};

/// The marks that identify the processes of a hold.
#[derive(Debug)]
pub(crate) struct Trace {
    tag: Tag,
    /// While this is open, no other file can have its inode number and be mistaken for it.
    fifo: Option<File>,
}

impl Trace {
    /// The trace of a hold. `dir` is the directory of the daemon's files.
    pub(crate) fn of(told: &Holder, dir: &Path) -> Option<Self> {
        let tag = told.tag?;
        Some(Self { tag, fifo: fifo_of(dir, tag) })
    }

    pub(crate) fn tag(&self) -> Tag {
        self.tag
    }
}

/// Kills the processes that run under these holds, except canal's own processes. Returns the tags
/// of the holds for which it found a process that had not ended. The caller repeats this until
/// nothing is found, because a process that is started at the same time may be missed.
pub(crate) fn kill(traces: &[&Trace]) -> BTreeSet<Tag> {
    let mut left = BTreeSet::new();
    if traces.is_empty() {
        return left;
    }
    let pids = match process::visible() {
        Ok(pids) => pids,
        Err(error) => {
            tracing::error!(%error, "cannot search for processes that commands started");
            return left;
        }
    };
    // A `canal run` ends by itself, and reports why.
    let own = OwnProgram::find();
    let mut found: Vec<(u32, Pidfd)> = Vec::new();
    for pid in pids.into_iter().filter(|pid| *pid != std::process::id()) {
        // Most processes have no mark. A process with a mark is checked again once its pidfd is
        // open, because from then on a reuse of its pid would be noticed.
        if tags_of(pid, traces).is_empty() || own.is_of(pid) {
            continue;
        }
        let Ok(pidfd) = Pidfd::open(pid) else { continue };
        let tags = tags_of(pid, traces);
        if !tags.is_empty() && pidfd.pid() == Some(pid) && !pidfd.has_ended() {
            left.extend(tags);
            found.push((pid, pidfd));
        }
    }
    // Adds descendants that have dropped all marks.
    process::add_descendants(&mut found, |pid| own.is_of(pid));
    for (pid, pidfd) in found {
        // The kernel may refuse the signal, because the process may have changed its user since it
        // began.
        if pidfd.signal(Signal::SIGKILL).is_ok() {
            tracing::warn!(
                pid,
                "the lock of the command that started it is lost: sent {}",
                Signal::SIGKILL
            );
        }
    }
    left
}

/// Whether a process visibly runs under a hold whose FIFO was removed: it has the removed FIFO
/// open, or names the hold in its environment and is not canal itself. (A daemon may have been
/// started under the hold, but does not belong to it.)
///
/// # Errors
/// /proc belongs to another namespace, so that nothing is known.
pub(crate) fn run_under(tag: Tag) -> io::Result<bool> {
    // The second pass finds a process that another process started during the first pass before it
    // ended.
    Ok(is_seen_under(tag)? || is_seen_under(tag)?)
}

fn is_seen_under(tag: Tag) -> io::Result<bool> {
    let (own, fifo) = (OwnProgram::find(), tag.to_string());
    let is_under = |pid: &u32| {
        process::has_named(*pid, &fifo) || tags_named(*pid).contains(&tag) && !own.is_of(*pid)
    };
    let pids = process::visible()?;
    Ok(pids.iter().filter(|pid| **pid != std::process::id()).any(is_under))
}

/// The holds, among these, that the process runs under.
fn tags_of(pid: u32, traces: &[&Trace]) -> BTreeSet<Tag> {
    let named = tags_named(pid);
    let mut tags: BTreeSet<Tag> =
        traces.iter().map(|trace| trace.tag).filter(|tag| named.contains(tag)).collect();
    let with_fifo: Vec<(Tag, &File)> =
        traces.iter().filter_map(|trace| Some((trace.tag, trace.fifo.as_ref()?))).collect();
    let fifos: Vec<&File> = with_fifo.iter().map(|(_, fifo)| *fifo).collect();
    let open = process::has_open(pid, &fifos).into_iter();
    tags.extend(open.filter_map(|at| Some(with_fifo.get(at)?.0)));
    tags
}

/// The holds that the environment of a process names.
fn tags_named(pid: u32) -> Vec<Tag> {
    let variable = process::variable(pid, HOLD_VARIABLE).unwrap_or_default();
    let named = variable.to_str().unwrap_or_default().split(' ');
    named.filter_map(|it| it.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use nix::unistd::Pid;

    use super::*;
    use canal_sys::process::child::children_of;
    use canal_sys::rerun::wait_until;

    fn under(value: &str, script: &str) -> Child {
        let mut shell = Command::new("/bin/sh");
        let child = shell.env(HOLD_VARIABLE, value).args(["-c", script]).spawn().unwrap();
        wait_until("it was started", || process::variable(child.id(), HOLD_VARIABLE).is_some());
        child
    }

    fn trace(bits: u128) -> Trace {
        Trace { tag: Tag(bits), fifo: None }
    }

    fn killed_by(child: &mut Child) -> Option<i32> {
        std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap())
    }

    #[test]
    fn a_command_is_killed_with_its_descendants_and_nothing_else() {
        let (lost, other) = (0x1057_u128, 0x07e4_u128);
        let mut inner = under(&format!("{} {}", Tag(lost), Tag(other)), "exec sleep 60");
        let mut stranger = under(&Tag(other).to_string(), "exec sleep 60");
        let mut parent = under(&Tag(lost).to_string(), "env -i sleep 60 & wait");
        let parent_pid = Pid::from_raw(parent.id().cast_signed());
        wait_until("it has a child", || !children_of(parent_pid).is_empty());
        let child = Pidfd::open(children_of(parent_pid)[0].as_raw().unsigned_abs()).unwrap();
        assert_eq!(kill(&[&trace(lost), &trace(1)]), [Tag(lost)].into());
        assert_eq!((killed_by(&mut inner), killed_by(&mut parent)), (Some(9), Some(9)));
        wait_until("its child is dead", || child.has_ended());
        assert!(kill(&[&trace(lost)]).is_empty());
        assert!(stranger.try_wait().unwrap().is_none());
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }
}
