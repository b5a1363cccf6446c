//! Identifies processes by kernel data: the client, the future owner, and processes that a daemon
//! recorded earlier.
//!
//! The pids and start times that a daemon in another pid or time namespace recorded have no meaning
//! in this namespace. But the inode of a pidfd identifies a process of the boot in all namespaces,
//! so the daemon uses it to find the visible processes again.
//!
//! Without an engine, a daemon with pidfs does not refuse to start because of a process that it
//! cannot see; otherwise, one container could lock every user out of every key.
//!
//! Invariant: a process counts as ended only if the daemon would have seen it. The record of a
//! process that may live never refers to another process.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::wording::{bad, denied, owner_gone};
use canal_core::{Diverged, Owner, ProcessId, Request, Table};
use canal_protocol::{ErrorName, Failure};
use canal_sys::peer;
use canal_sys::pidfd::{FORBIDDEN_HINT, Pidfd, is_gone};
use canal_sys::process::{self, FIRST_PID_NAMESPACE, Found, Origin, all, identity, uid_of};

/// The most processes whose state is read at once: those of holders when a request that may not
/// wait is refused or a status is built, those of detached waiters when the daemon starts, and
/// those of waiters that are about to be given up.
pub(crate) const PROCESSES_LOOKED_AT_MAX: usize = 500;

/// The identity of the process of a pidfd. `None` if the process was reaped, or if nothing
/// distinguishes it from others.
pub(crate) fn process_of(pidfd: &Pidfd) -> Option<ProcessId> {
    identity(pidfd).filter(|process| process.started != 0 || process.inode != 0)
}

/// Looks for a recorded process of this boot and pid namespace.
pub(crate) fn find(process: ProcessId) -> Found {
    #[cfg(test)]
    if crate::sim::is_broken(crate::sim::Rule::InodesIdentifyProcesses) {
        return Pidfd::open(process.pid).map_or(Found::Gone, Found::Same);
    }
    process::find(process)
}

/// The user id that the kernel shows in a user namespace for all users without an id there.
pub(crate) const NOBODY: u32 = 65534;

/// The owner of a future hold.
#[derive(Debug)]
pub(crate) struct OwnerFound {
    pub owner: Owner,
    /// The user of the process, or the user that asked for the lease.
    pub uid: u32,
    /// The pidfd of the process, if it was opened.
    pub pidfd: Option<Pidfd>,
}

/// The pidfd of the process at the other end of a connection.
pub(crate) fn peer_pidfd(socket: BorrowedFd<'_>, accepted_ticks: u64) -> Result<Pidfd, Failure> {
    let found = peer::pidfd(socket, accepted_ticks).map_err(|error| cannot_watch(&error))?;
    found.ok_or_else(owner_gone)
}

/// The failure for a client whose owner process cannot be watched.
pub(crate) fn cannot_watch(error: &io::Error) -> Failure {
    let message = format!("the daemon cannot watch the process that would own the lock: {error}");
    match error.kind() {
        io::ErrorKind::PermissionDenied => denied(message).hint(FORBIDDEN_HINT),
        io::ErrorKind::Unsupported => denied(message),
        _ => Failure::new(ErrorName::TooManyConnections, message).hint("try again later"),
    }
}

pub(crate) fn identified(pidfd: &Pidfd) -> Result<ProcessId, Failure> {
    process_of(pidfd).ok_or_else(owner_gone)
}

/// The process that a client passed by its pidfd.
pub(crate) fn other_owner(
    peer: peer::Credentials,
    fd: OwnedFd,
    over_engine: bool,
) -> Result<OwnerFound, Failure> {
    let pidfd = Pidfd::from_fd(fd)
        .map_err(|error| bad(format!("the descriptor of the owner is not a pidfd: {error}")))?;
    let process = identified(&pidfd)?;
    if process.pid == 0 {
        return Err(denied("a process that the daemon cannot see cannot own a lock"));
    }
    if process.pid == 1 {
        process_1_may_own(over_engine)?;
    }
    if pidfd.has_ended() {
        return Err(owner_gone());
    }
    let uid = uid_of(&pidfd).ok_or_else(owner_gone)?;
    if uid != peer.uid && peer.uid != 0 {
        let (pid, caller) = (process.pid, peer.uid);
        let what = format!("process {pid} belongs to uid {uid}, but the caller is uid {caller}");
        return Err(denied(what));
    }
    Ok(OwnerFound { owner: Owner::Process(process), uid, pidfd: Some(pidfd) })
}

/// Checks whether the process with pid 1 here may own a lock.
///
/// # Errors
/// The reason why it may not.
fn process_1_may_own(over_engine: bool) -> Result<(), Failure> {
    let origin =
        Origin::read().map_err(|error| denied(format!("cannot identify process 1: {error}")))?;
    if origin.is_init_of_machine(1) {
        return Err(denied("process 1 never ends, so its lock would never end either"));
    }
    // The first process of a namespace is immune to SIGKILL from its own namespace.
    if over_engine {
        return Err(denied(
            "a lock with an engine needs an owner that the daemon can kill, and process 1 of a \
             container cannot be killed from within",
        ));
    }
    Ok(())
}

/// No process has this pid, because it is above the kernel's limit.
const PID_OF_NONE: u32 = i32::MAX.cast_unsigned();

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

/// Why a table of another namespace cannot be kept here.
#[derive(Debug)]
pub(crate) enum NotAdopted {
    /// The table contradicts itself.
    Diverged(Diverged),
    /// Only their pids identify these holders: the key and command of each.
    Nameless(Vec<String>),
}

/// Translates the processes of a table that was recorded in other namespaces. Returns the table
/// that a daemon here keeps, and the key and command of each holder that may live where the daemon
/// cannot see it.
pub(crate) fn adopt(table: &Table, visible: &Visible) -> Result<(Table, Vec<String>), NotAdopted> {
    let mut snapshot = table.snapshot();
    let holders = |is: &dyn Fn(ProcessId) -> bool| -> Vec<String> {
        let held = table.holds().filter(|hold| !hold.orphaned);
        let named = held.filter_map(|hold| match hold.asked.owner {
            Owner::Process(process) if is(process) => {
                let keys: BTreeSet<&str> =
                    hold.items.iter().map(|item| item.key.as_str()).collect();
                let keys = keys.into_iter().collect::<Vec<_>>().join(" ");
                Some(format!("{keys} ({})", hold.asked.command.0))
            }
            _ => None,
        });
        named.collect()
    };
    let nameless = holders(&|process| process.inode == 0);
    if !nameless.is_empty() {
        return Err(NotAdopted::Nameless(nameless));
    }
    let unverified = holders(&|process| visible.standing(process) == Standing::Unknown);
    let owner = |owner: &mut Owner| {
        if let Owner::Process(process) = owner {
            *process = visible.translate(*process);
        }
    };
    let request = |request: &mut Arc<Request>| {
        let request = Arc::make_mut(request);
        owner(&mut request.owner);
        request.asker = request.asker.map(|asker| visible.translate(asker));
    };
    for frame in &mut snapshot.frames {
        owner(&mut frame.owner);
    }
    for hold in &mut snapshot.holds {
        request(&mut hold.asked);
    }
    for waiter in &mut snapshot.waiters {
        request(&mut waiter.request);
    }
    Ok((Table::restore(&snapshot).map_err(NotAdopted::Diverged)?, unverified))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;
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
