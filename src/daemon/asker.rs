//! Who asks, and who shall own: what the kernel says of them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::conn::{ConnId, Connection};
use super::ended::owner_gone;
use super::owners::process_of;
use super::serve::nth_fd;
use super::server::Server;
use crate::core::{Owner, ProcessId};
use crate::protocol::{ErrorName, Failure};
use crate::sys::peer;
use crate::sys::pidfd::Pidfd;
use crate::sys::process::uid_of;

/// The user id that stands for all that have none in a user namespace.
pub(super) const NOBODY: u32 = 65534;

/// Who shall own.
#[derive(Debug)]
pub(super) struct OwnerFound {
    pub(super) owner: Owner,
    /// Whose process it is, or who asked for the lease.
    pub(super) uid: u32,
    /// The process's, if it was opened.
    pub(super) pidfd: Option<Pidfd>,
}

impl Server {
    /// Who shall own: the peer, or whom a descriptor names.
    pub(super) fn owner(
        &mut self,
        id: ConnId,
        owner_fd: Option<u32>,
        fds: Vec<OwnedFd>,
    ) -> Result<OwnerFound, Failure> {
        let Some(conn) = self.conns.get(id) else { return Err(owner_gone()) };
        let found = match owner_fd {
            Some(index) => other_owner(conn.peer, nth_fd(fds, index)?)?,
            None => {
                let (process, pidfd) = peer_process(conn)?;
                OwnerFound { owner: Owner::Process(process), uid: conn.peer.uid, pidfd }
            }
        };
        if found.uid == NOBODY {
            let message = "uid 65534 stands for many users and can own nothing";
            return Err(Failure::new(ErrorName::Denied, message));
        }
        Ok(found)
    }

    /// The process at the other end of a connection, if it can be named.
    pub(super) fn asker(&mut self, id: ConnId) -> Option<ProcessId> {
        let (process, _) = peer_process(self.conns.get(id)?).ok()?;
        Some(process)
    }
}

/// The process at the other end of a connection, and its pidfd if it had to be opened.
fn peer_process(conn: &mut Connection) -> Result<(ProcessId, Option<Pidfd>), Failure> {
    if let Some(process) = conn.process {
        return Ok((process, None));
    }
    let pidfd = peer_pidfd(conn.as_fd(), conn.accepted_ticks)?;
    let process = identified(&pidfd)?;
    conn.process = Some(process);
    Ok((process, Some(pidfd)))
}

/// The process at the other end of a connection.
pub(super) fn peer_pidfd(socket: BorrowedFd<'_>, accepted_ticks: u64) -> Result<Pidfd, Failure> {
    match peer::pidfd(socket, accepted_ticks) {
        Ok(Some(pidfd)) => Ok(pidfd),
        Ok(None) => Err(owner_gone()),
        Err(error) => Err(cannot_watch(&error)),
    }
}

/// What one is told whose process cannot be watched.
pub(super) fn cannot_watch(error: &io::Error) -> Failure {
    let message = format!("the daemon cannot watch the process that shall own the lock: {error}");
    match error.kind() {
        io::ErrorKind::Unsupported => Failure::new(ErrorName::Denied, message),
        _ => Failure::new(ErrorName::TooManyConnections, message).hint("try again later"),
    }
}

fn identified(pidfd: &Pidfd) -> Result<ProcessId, Failure> {
    process_of(pidfd).ok_or_else(owner_gone)
}

/// The process that somebody named by its pidfd.
fn other_owner(peer: peer::Credentials, fd: OwnedFd) -> Result<OwnerFound, Failure> {
    let pidfd = Pidfd::from_fd(fd).map_err(|error| {
        let message = format!("the descriptor of the owner is not a pidfd: {error}");
        Failure::new(ErrorName::BadRequest, message)
    })?;
    let denied = |message: String| Failure::new(ErrorName::Denied, message);
    let process = identified(&pidfd)?;
    if process.pid <= 1 {
        return Err(denied(format!("process {} cannot own a lock", process.pid)));
    }
    if pidfd.has_ended() {
        return Err(owner_gone());
    }
    let uid = uid_of(&pidfd).ok_or_else(owner_gone)?;
    if uid != peer.uid && peer.uid != 0 {
        let pid = process.pid;
        return Err(denied(format!(
            "process {pid} belongs to uid {uid}, you are uid {}",
            peer.uid
        )));
    }
    Ok(OwnerFound { owner: Owner::Process(process), uid, pidfd: Some(pidfd) })
}
