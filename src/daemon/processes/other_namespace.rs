//! Processes of another pid or time namespace of this boot.
//!
//! The daemon cannot watch them. But from the first pid namespace, which sees the processes of all
//! others, it can at least find out that none of them is left: a container was removed with
//! everything that ran in it.
//!
//! Invariant: a process counts as gone only if the daemon would have seen it.

use std::collections::BTreeSet;
use std::path::Path;

use crate::core::{Owner, ProcessId, Table, Token};
use crate::daemon::processes::children::Children;
use crate::daemon::processes::holder::Holder;
use crate::daemon::unusable::Unusable;
use crate::sys::pidfd::{Pidfd, is_gone};
use crate::sys::process::{FIRST_PID_NAMESPACE, Origin, all};

/// What became of processes of another namespace.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// No process is left.
    Gone,
    /// These processes are left, with their pids in this namespace.
    Live(BTreeSet<u32>),
    /// They may be where the daemon cannot see them.
    Unknown,
}

/// Refuses to start while a process of another namespace holds anything by a journal's table, or
/// may hold anything. `origin` is that of this process.
///
/// # Errors
/// Such processes exist or may exist. The error says what to do about it.
pub(crate) fn refuse_holders(table: &Table, dir: &Path, origin: &Origin) -> anyhow::Result<()> {
    let processes: BTreeSet<ProcessId> = table
        .holds()
        .filter_map(|hold| match hold.asked.owner {
            Owner::Process(process) => Some(process),
            Owner::Lease(_) | Owner::Jobserver(_) => None,
        })
        .collect();
    let fate = match fate(&processes, origin) {
        Fate::Gone if has_writers(table, dir) => Fate::Unknown,
        fate => fate,
    };
    refuse(&fate, processes.len(), &format!("the journal in {}", dir.display()))
}

/// The same check for a record of holders, which a daemon with an engine keeps.
pub(crate) fn refuse_recorded(
    each: impl Iterator<Item = (Token, Holder)>,
    path: &Path,
    origin: &Origin,
) -> anyhow::Result<()> {
    let processes: BTreeSet<ProcessId> = each.map(|(_, told)| told.process).collect();
    refuse(&fate(&processes, origin), processes.len(), &path.display().to_string())
}

/// Whether descendants of a holder still have, or may have, its FIFO open. A FIFO has no namespace.
fn has_writers(table: &Table, dir: &Path) -> bool {
    let mut children = Children::new(dir);
    let mut holds = table.holds().filter(|hold| hold.asked.children);
    holds.any(|hold| {
        children.take_over(hold.token, hold.asked.tag).is_err() || children.has_writers(hold.token)
    })
}

fn fate(processes: &BTreeSet<ProcessId>, origin: &Origin) -> Fate {
    if processes.is_empty() {
        return Fate::Gone;
    }
    // Two processes without an inode number cannot be told apart.
    let inodes: BTreeSet<u64> =
        processes.iter().map(|process| process.inode).filter(|inode| *inode != 0).collect();
    let Ok(numbers) = all() else { return Fate::Unknown };
    let mut live = BTreeSet::new();
    for pid in numbers {
        match Pidfd::open(pid) {
            Ok(pidfd) if pidfd.inode() == 0 => return Fate::Unknown,
            Ok(pidfd) if inodes.contains(&pidfd.inode()) && !pidfd.has_ended() => {
                live.insert(pid);
            }
            Ok(_) => {}
            Err(error) if is_gone(&error) => {}
            Err(_) => return Fate::Unknown,
        }
    }
    let all_would_be_seen =
        inodes.len() == processes.len() && origin.pid_namespace == FIRST_PID_NAMESPACE;
    match all_would_be_seen {
        _ if !live.is_empty() => Fate::Live(live),
        true => Fate::Gone,
        false => Fate::Unknown,
    }
}

fn refuse(fate: &Fate, count: usize, by: &str) -> anyhow::Result<()> {
    let (what, hint) = match fate {
        Fate::Gone => return Ok(()),
        Fate::Live(pids) => {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            let what = format!(
                "processes of another pid or time namespace hold locks by {by}: pid {} here",
                pids.join(", ")
            );
            (what, "end them, or run the daemon where they are (a container?)")
        }
        Fate::Unknown => {
            let names = if count == 1 { "process" } else { "processes" };
            let what = format!(
                "{by} names {count} {names} of another pid or time namespace, which cannot be \
                 looked after from here"
            );
            let hint = "run the daemon where they are (a container?), or give this one a place of \
                        its own with --socket; if they are gone for certain, `canal daemon \
                        --discard-journal` leaves them out";
            (what, hint)
        }
    };
    Err(Unusable { what, hint: hint.into() }.into())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::daemon::processes::owners::process_of;

    fn origin(pid_namespace: u64) -> Origin {
        Origin { boot_id: "b".to_owned(), pid_namespace, time_namespace: 0 }
    }

    /// A process that ends when its input is closed, and its identity as another namespace would
    /// know it.
    fn process() -> (Child, ProcessId) {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = process_of(&Pidfd::open(child.id()).unwrap()).unwrap();
        (child, ProcessId { pid: 2, ..process })
    }

    #[test]
    fn a_live_process_of_another_namespace_is_found_under_its_pid_here() {
        let (mut child, process) = process();
        if process.inode == 0 {
            return; // Without pidfs nothing distinguishes it from others.
        }
        let processes = BTreeSet::from([process]);
        let first = origin(FIRST_PID_NAMESPACE);
        assert_eq!(fate(&processes, &first), Fate::Live(BTreeSet::from([child.id()])));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(fate(&processes, &first), Fate::Gone);
        assert_eq!(fate(&processes, &origin(7)), Fate::Unknown, "it may be where we do not look");
        let nameless = BTreeSet::from([process, ProcessId { inode: 0, ..process }]);
        assert_eq!(fate(&nameless, &first), Fate::Unknown);
    }

    #[test]
    fn one_process_is_named_in_the_singular() {
        let said = |count| refuse(&Fate::Unknown, count, "it").unwrap_err().to_string();
        assert!(said(1).contains("names 1 process of"));
        assert!(said(2).contains("names 2 processes of"));
    }
}
