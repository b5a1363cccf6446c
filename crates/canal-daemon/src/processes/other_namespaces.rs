//! Processes that a daemon in another pid or time namespace recorded.
//!
//! The pids and start times in such a record have no meaning in this namespace. But the inode of a
//! pidfd identifies a process of the boot in all namespaces, so the daemon uses it to find the
//! visible processes again.
//!
//! Without an engine, a daemon with pidfs does not refuse to start because of a process that it
//! cannot see; otherwise, one container could lock every user out of every key.
//!
//! Invariant: a process counts as ended only if the daemon would have seen it. The record of a
//! process that may live never refers to another process.

use std::collections::BTreeMap;

use canal_core::ProcessId;
use canal_sys::pidfd::{Pidfd, is_gone};
use canal_sys::process::{FIRST_PID_NAMESPACE, Origin, all};

/// No process has this pid, because it is above the kernel's limit.
const PID_OF_NONE: u32 = i32::MAX.cast_unsigned();

/// The remedy if a daemon cannot start because it cannot see recorded processes.
pub(crate) const UNSEEN_HINT: &str = "run the daemon where these processes are (perhaps in a \
                                      container), or give this one another directory with \
                                      --socket; if you are sure that they are gone, omit them \
                                      with `canal daemon --discard-journal`";

/// The state of a recorded process, as far as this daemon can see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It lives, and has this pid here.
    Lives(u32),
    /// It has ended.
    Ended,
    /// It may be in a place that the daemon cannot see.
    Unknown,
}

/// The processes that are visible here, for comparison with recorded ones.
#[derive(Debug)]
pub(crate) struct Visible {
    /// By the inode of the pidfd: the pid here, and whether the process lives.
    by_inode: BTreeMap<u64, Standing>,
    /// Whether the search would have found any process of the recorded namespace.
    sees_theirs: bool,
    /// Whether the search would have found any process of the machine.
    sees_all: bool,
}

impl Visible {
    /// Examines all processes, for records of the namespaces of `theirs`.
    pub(crate) fn look(theirs: &Origin, here: &Origin) -> Self {
        let mut by_inode = BTreeMap::new();
        let pids = all();
        let mut is_whole = pids.is_ok();
        for pid in pids.unwrap_or_default() {
            match Pidfd::open(pid) {
                Ok(pidfd) if pidfd.inode() != 0 => {
                    let standing =
                        if pidfd.has_ended() { Standing::Ended } else { Standing::Lives(pid) };
                    by_inode.insert(pidfd.inode(), standing);
                }
                Err(error) if is_gone(&error) => {}
                // Without pidfs, nothing identifies a process across namespaces.
                _ => is_whole = false,
            }
        }
        let sees_theirs = is_whole && theirs.pid_namespace == here.pid_namespace;
        let sees_all = is_whole && here.pid_namespace == FIRST_PID_NAMESPACE;
        Self { by_inode, sees_theirs, sees_all }
    }

    /// The state of a recorded process.
    pub(crate) fn standing(&self, process: ProcessId) -> Standing {
        // A process without a pid for the daemon that recorded it was not in that daemon's
        // namespace.
        let would_be_found = self.sees_all || (self.sees_theirs && process.pid != 0);
        match self.by_inode.get(&process.inode) {
            _ if process.inode == 0 => Standing::Unknown,
            Some(standing) => *standing,
            None if would_be_found => Standing::Ended,
            None => Standing::Unknown,
        }
    }

    /// The process in the form that a daemon here records. A process that may live and is not
    /// visible gets no pid, so that no lookup takes another process for it.
    pub(crate) fn translate(&self, process: ProcessId) -> ProcessId {
        let pid = match self.standing(process) {
            Standing::Lives(pid) => pid,
            Standing::Ended => PID_OF_NONE,
            Standing::Unknown => 0,
        };
        ProcessId { pid, ..process }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::processes::identify_owner::{find, process_of};
    use canal_sys::process::Found;

    fn origin(pid_namespace: u64, time_namespace: u64) -> Origin {
        Origin { boot_id: "b".to_owned(), pid_namespace, time_namespace }
    }

    /// A process that ends when its input is closed, and its identity as another namespace would
    /// record it.
    fn process() -> (Child, ProcessId) {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = process_of(&Pidfd::open(child.id()).unwrap()).unwrap();
        (child, ProcessId { pid: 2, ..process })
    }

    #[test]
    fn a_process_of_another_namespace_is_known_by_its_inode_and_gone_only_where_it_would_be_seen() {
        let (mut child, process) = process();
        if process.inode == 0 {
            return; // Without pidfs nothing distinguishes it from others.
        }
        let below = origin(7, 1);
        let first = origin(FIRST_PID_NAMESPACE, 1);
        let seen = |here: &Origin| Visible::look(&below, here).standing(process);
        for here in [&first, &origin(8, 1), &origin(7, 2)] {
            assert_eq!(seen(here), Standing::Lives(child.id()), "{here:?}");
        }
        let translated = Visible::look(&below, &first).translate(process);
        assert!(matches!(find(translated), Found::Same(_)), "{translated:?}");
        let nameless = ProcessId { inode: 0, ..process };
        assert_eq!(Visible::look(&below, &first).standing(nameless), Standing::Unknown);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(seen(&first), Standing::Ended);
        assert_eq!(seen(&origin(7, 2)), Standing::Ended, "only the clock is another one");
        assert_eq!(seen(&origin(8, 1)), Standing::Unknown, "it may be where we do not look");
        let outside = ProcessId { pid: 0, ..process };
        let seen_outside = |here: &Origin| Visible::look(&below, here).standing(outside);
        assert_eq!(seen_outside(&origin(7, 2)), Standing::Unknown, "it was not in that namespace");
        assert_eq!(seen_outside(&first), Standing::Ended);
        let gone = Visible::look(&below, &first).translate(process);
        assert!(matches!(find(gone), Found::Gone));
        let unknown = Visible::look(&below, &origin(8, 1)).translate(process);
        assert!(matches!(find(unknown), Found::Unknown(_)));
    }
}
