//! Finds the process that will own the lock of a call, and the frame that encloses the frame of a
//! new request.
//!
//! Invariant: the daemon accepts a named frame only if the kernel confirms that the future owner of
//! the lock is the process of that frame, or descends from it. A process that was started from
//! outside a session (by a build server, say) does not belong to the session, whatever its
//! environment contains.
//!
//! A lease belongs to no process. A command under a lock over nodes, and its helpers, prove their
//! place by the handle of the lease.

use std::os::fd::AsFd;

use crate::calls::call::ConnId;
use crate::lease_deadlines::name_of;
use crate::net::connection::Connection;
use crate::processes::identify_owner::{
    NOBODY, OwnerFound, find, identified, other_owner, peer_pidfd,
};
use crate::server::Server;
use crate::server::call_step::{Caller, Result};
use crate::wording::{bad, denied, owner_gone};
use canal_core::{FrameId, Owner, ProcessId};
use canal_protocol::Handle;
use canal_sys::pidfd::Pidfd;
use canal_sys::process::{Found, ancestors};

/// How many ancestors of a process are searched for the process whose frame encloses it.
const ANCESTORS_MAX: usize = 256;

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
                let at = usize::try_from(index).unwrap_or(usize::MAX);
                let fd = std::mem::take(&mut caller.fds).into_iter().nth(at).ok_or_else(|| {
                    bad(format!("the call names descriptor {index}, which did not come with it"))
                })?;
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

    /// The frame that encloses the frame of a new request: the innermost frame between its process
    /// and the process of the named frame, or else the frame of the lease whose handle the client
    /// shows. `None` for a lease, and for a process that already has a frame.
    pub(crate) fn enclosing(
        &self,
        named: Option<&str>,
        under: Option<Handle>,
        owner: &OwnerFound,
    ) -> Option<FrameId> {
        // A lease outlives the frame in which it was asked for.
        let Owner::Process(process) = owner.owner else { return None };
        if self.decide.table().frame_of(self.decide.host(), &owner.owner).is_some() {
            // The frame that encloses an existing frame never changes.
            return None;
        }
        let innermost = |frame: &str| {
            let found = parse(frame).and_then(|named| self.innermost(named, process, owner.uid));
            if found.is_none() {
                let pid = process.pid;
                tracing::debug!(pid, frame, "the named frame does not enclose this process");
            }
            found
        };
        named.and_then(innermost).or_else(|| self.lease_above(under?, owner.uid))
    }

    /// The frame of a lease of this user that is confirmed and has not ended.
    pub(crate) fn lease_above(&self, handle: Handle, uid: u32) -> Option<FrameId> {
        let table = self.decide.table();
        let mut holds = table.holds_in(table.lease(name_of(handle))?).peekable();
        let frame = holds.peek()?.frame;
        let is_own = table.frame(frame).is_some_and(|lease| lease.uid == uid);
        (is_own && holds.all(|hold| !hold.provisional)).then_some(frame)
    }

    /// The innermost frame from the process up to the frame `named`.
    fn innermost(&self, named: FrameId, process: ProcessId, uid: u32) -> Option<FrameId> {
        if !self.may_enclose(named, uid) {
            return None;
        }
        // The pid belongs to this process while the process exists. The filter after the search
        // checks that. If the process of a frame is alive now, it had its pid during the search as
        // well, so no other process had that pid.
        let Found::Same(pidfd) = find(process) else { return None };
        let (table, mut innermost) = (self.decide.table(), None);
        for pid in ancestors(process.pid).take(ANCESTORS_MAX) {
            let mut frames = table.frames_of_number(self.decide.host(), pid);
            let Some(frame) = frames.find(|frame| self.may_enclose(*frame, uid)) else { continue };
            if table.session(frame) == table.session(named) {
                innermost = innermost.or(Some(frame));
            }
            if frame == named {
                return innermost.filter(|_| pidfd.pid() == Some(process.pid));
            }
        }
        None
    }

    /// Whether the frame belongs to this user and its process is certainly alive.
    fn may_enclose(&self, frame: FrameId, uid: u32) -> bool {
        let state = self.decide.table().frame(frame);
        state.is_some_and(|state| !state.ended && state.uid == uid)
            && self.owners.of(frame).is_some_and(|pidfd: &Pidfd| !pidfd.has_ended())
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

/// Parses the name of a frame as grants state it: `f42`.
fn parse(name: &str) -> Option<FrameId> {
    let digits = name.strip_prefix('f')?;
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok().map(FrameId))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_well_formed_frame_name_is_accepted() {
        assert_eq!(parse("f42"), Some(FrameId(42)));
        for text in ["", "f", "42", "s42", "f-1", "f+1", "f 1", "f99999999999999999999"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
