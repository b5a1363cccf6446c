//! Identifies processes by kernel data: the client, the future owner, and processes that a daemon
//! recorded earlier.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::wording::{bad, denied, owner_gone};
use canal_core::{Owner, ProcessId};
use canal_protocol::{ErrorName, Failure};
use canal_sys::peer;
use canal_sys::pidfd::{FORBIDDEN_HINT, Pidfd};
use canal_sys::process::{self, Found, Origin, identity, uid_of};

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

/// The process that a client with the user id `by` passed by its pidfd.
pub(crate) fn other_owner(by: u32, fd: OwnedFd, over_engine: bool) -> Result<OwnerFound, Failure> {
    let pidfd = Pidfd::from_fd(fd)
        .map_err(|error| bad(format!("the descriptor of the owner is not a pidfd: {error}")))?;
    let process = identified(&pidfd)?;
    if process.pid == 0 {
        return Err(denied("a process that the daemon cannot see cannot own a lock"));
    }
    if process.pid == 1 {
        let origin = Origin::read();
        let origin =
            origin.map_err(|error| denied(format!("cannot identify process 1: {error}")))?;
        if origin.is_init_of_machine(1) {
            return Err(denied("process 1 never ends, so its lock would never end either"));
        }
        // The first process of a namespace is immune to SIGKILL from its own namespace.
        if over_engine {
            return Err(denied(
                "a lock with an engine needs an owner that the daemon can kill, and process 1 of \
                 a container cannot be killed from within",
            ));
        }
    }
    if pidfd.has_ended() {
        return Err(owner_gone());
    }
    let uid = uid_of(&pidfd).ok_or_else(owner_gone)?;
    if uid != by && by != 0 {
        let pid = process.pid;
        let what = format!("process {pid} belongs to uid {uid}, but the caller is uid {by}");
        return Err(denied(what));
    }
    Ok(OwnerFound { owner: Owner::Process(process), uid, pidfd: Some(pidfd) })
}
