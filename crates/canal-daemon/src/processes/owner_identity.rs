//! Identifies the client and the future owner by kernel data.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::processes::owners::process_of;
use crate::wording::owner_gone;
use canal_core::{Owner, ProcessId};
use canal_protocol::{ErrorName, Failure};
use canal_sys::peer;
use canal_sys::pidfd::{FORBIDDEN_HINT, Pidfd};
use canal_sys::process::{Origin, uid_of};

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
    match peer::pidfd(socket, accepted_ticks) {
        Ok(Some(pidfd)) => Ok(pidfd),
        Ok(None) => Err(owner_gone()),
        Err(error) => Err(cannot_watch(&error)),
    }
}

/// The failure for a client whose owner process cannot be watched.
pub(crate) fn cannot_watch(error: &io::Error) -> Failure {
    let message = format!("the daemon cannot watch the process that would own the lock: {error}");
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            Failure::new(ErrorName::Denied, message).hint(FORBIDDEN_HINT)
        }
        io::ErrorKind::Unsupported => Failure::new(ErrorName::Denied, message),
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
    let pidfd = Pidfd::from_fd(fd).map_err(|error| {
        let message = format!("the descriptor of the owner is not a pidfd: {error}");
        Failure::new(ErrorName::BadRequest, message)
    })?;
    let denied = |message: String| Failure::new(ErrorName::Denied, message);
    let process = identified(&pidfd)?;
    if process.pid == 0 {
        return Err(denied("a process that the daemon cannot see cannot own a lock".to_owned()));
    }
    if process.pid == 1 {
        process_1_may_own(over_engine).map_err(denied)?;
    }
    if pidfd.has_ended() {
        return Err(owner_gone());
    }
    let uid = uid_of(&pidfd).ok_or_else(owner_gone)?;
    if uid != peer.uid && peer.uid != 0 {
        let pid = process.pid;
        return Err(denied(format!(
            "process {pid} belongs to uid {uid}, but the caller is uid {}",
            peer.uid
        )));
    }
    Ok(OwnerFound { owner: Owner::Process(process), uid, pidfd: Some(pidfd) })
}

/// Checks whether the process with pid 1 here may own a lock.
///
/// # Errors
/// The reason why it may not.
fn process_1_may_own(over_engine: bool) -> Result<(), String> {
    let origin = Origin::read().map_err(|error| format!("cannot identify process 1: {error}"))?;
    if origin.is_init_of_machine(1) {
        return Err("process 1 never ends, so its lock would never end either".to_owned());
    }
    // The first process of a namespace is immune to SIGKILL from its own namespace.
    if over_engine {
        let why = "a lock with an engine needs an owner that the daemon can kill, and process 1 of \
                   a container cannot be killed from within";
        return Err(why.to_owned());
    }
    Ok(())
}
