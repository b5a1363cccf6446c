//! Finds the process that will own the lock of a call.

use std::os::fd::AsFd;

use crate::calls::call::{ConnId, nth_fd};
use crate::net::connection::Connection;
use crate::processes::identify_owner::{NOBODY, OwnerFound, identified, other_owner, peer_pidfd};
use crate::server::Server;
use crate::server::call_step::{Caller, Result};
use crate::wording::{denied, owner_gone};
use canal_core::{Owner, ProcessId};
use canal_sys::pidfd::Pidfd;

impl Server {
    /// The owner: the peer, or the process of a descriptor.
    pub(crate) fn owner(
        &mut self,
        caller: &mut Caller,
        owner_fd: Option<u32>,
    ) -> Result<OwnerFound> {
        let Some(conn) = self.conns.get(caller.id) else { return Err(owner_gone()) };
        let found = match owner_fd {
            Some(index) => {
                let fd = nth_fd(std::mem::take(&mut caller.fds), index)?;
                other_owner(conn.peer.uid, fd, self.decide.is_shared())?
            }
            None => {
                let (process, pidfd) = peer_process(conn)?;
                OwnerFound { owner: Owner::Process(process), uid: conn.peer.uid, pidfd }
            }
        };
        checked(found)
    }

    /// The process at the other end of a connection, if it can be identified.
    pub(crate) fn asker(&mut self, id: ConnId) -> Option<ProcessId> {
        let (process, _) = peer_process(self.conns.get(id)?).ok()?;
        Some(process)
    }
}

/// An owner, unless its user is one that nobody can tell from others.
pub(crate) fn checked(owner: OwnerFound) -> Result<OwnerFound> {
    if owner.uid == NOBODY {
        return Err(denied("uid 65534 stands for many users and cannot own a lock"));
    }
    Ok(owner)
}

/// The process at the other end of a connection, and its pidfd if it had to be opened.
fn peer_process(conn: &mut Connection) -> Result<(ProcessId, Option<Pidfd>)> {
    if let Some(process) = conn.process {
        return Ok((process, None));
    }
    let pidfd = peer_pidfd(conn.as_fd(), conn.accepted_ticks)?;
    let process = identified(&pidfd)?;
    conn.process = Some(process);
    Ok((process, Some(pidfd)))
}
