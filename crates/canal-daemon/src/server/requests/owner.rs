//! Finds the process that will own the lock of a call.

use std::os::fd::{AsFd, OwnedFd};

use crate::calls::call::nth_fd;
use crate::calls::conn_id::ConnId;
use crate::net::connection::Connection;
use crate::processes::owner_identity::{NOBODY, OwnerFound, identified, other_owner, peer_pidfd};
use crate::server::Server;
use crate::wording::refusal::owner_gone;
use canal_core::{Owner, ProcessId};
use canal_protocol::{ErrorName, Failure};
use canal_sys::pidfd::Pidfd;

impl Server {
    /// The owner: the peer, or the process of a descriptor.
    pub(crate) fn owner(
        &mut self,
        id: ConnId,
        owner_fd: Option<u32>,
        fds: Vec<OwnedFd>,
    ) -> Result<OwnerFound, Failure> {
        let Some(conn) = self.conns.get(id) else { return Err(owner_gone()) };
        let found = match owner_fd {
            Some(index) => other_owner(conn.peer, nth_fd(fds, index)?, self.cluster.is_some())?,
            None => {
                let (process, pidfd) = peer_process(conn)?;
                OwnerFound { owner: Owner::Process(process), uid: conn.peer.uid, pidfd }
            }
        };
        if found.uid == NOBODY {
            let message = "uid 65534 stands for many users and cannot own a lock";
            return Err(Failure::new(ErrorName::Denied, message));
        }
        Ok(found)
    }

    /// The process at the other end of a connection, if it can be identified.
    pub(crate) fn asker(&mut self, id: ConnId) -> Option<ProcessId> {
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
