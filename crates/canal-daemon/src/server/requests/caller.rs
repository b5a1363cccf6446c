//! The client of a call: what it may do, the process that will own its lock, and the frame that
//! encloses that process.

use std::os::fd::AsFd;

use crate::calls::call::{Asked, ConnId, Trait, nth_fd};
use crate::calls::items;
use crate::config::permissions::{Action, only_operators};
use crate::net::connection::Connection;
use crate::processes::identity::{NOBODY, OwnerFound, find, identified, other_owner, peer_pidfd};
use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step};
use crate::store::ledger::disk_full;
use crate::waiters::leases::name_of;
use crate::wording::{denied, owner_gone};
use canal_core::{Ask, FrameId, HoldState, Item, Key, Owner, ProcessId, room_of};
use canal_protocol::{ErrorName, Failure, Handle, Release, Restrict};
use canal_sys::peer;
use canal_sys::pidfd::Pidfd;
use canal_sys::process::{Found, ancestors};

/// How many ancestors of a process are searched for the process whose frame encloses it.
const ANCESTORS_MAX: usize = 256;

/// Checks whether a peer has the permission for its request, and how much of the table the requests
/// of a user may take.
impl Server {
    /// Whether a user runs this daemon or is root. Only these may read and change its
    /// configuration.
    pub(crate) fn is_operator(&self, uid: u32) -> bool {
        uid == 0 || uid == self.about.uid
    }

    /// Checks whether a user may do `what` only operators may do.
    pub(crate) fn check_operator(&self, uid: u32, what: &str) -> Result<()> {
        if self.is_operator(uid) {
            return Ok(());
        }
        let only = only_operators(self.about.uid);
        Err(denied(format!("uid {uid} may not {what}; {only} may do so")))
    }

    /// Whether a peer may ask for these items, with this priority.
    pub(crate) fn may_hold(&self, id: ConnId, items: &[Item], priority: i32) -> Result<()> {
        for item in items {
            self.may(id, Action::Hold, &item.key)?;
            if priority > 0 {
                self.may(id, Action::Priority, &item.key)?;
            }
            // A read or a write of a key also takes the keys below it.
            if let Ask::Read | Ask::Write = item.ask {
                for below in self.effective.config.permissions.held_apart(&item.key) {
                    let what = || format!("hold `{below}`, which is below `{}`", item.key);
                    self.permitted(id, Action::Hold, below, what)?;
                }
            }
        }
        Ok(())
    }

    /// Whether a peer may end a hold that is not its own.
    pub(crate) fn may_force(&self, id: ConnId, hold: &HoldState) -> Result<()> {
        if self.conns.peek(id).is_some_and(|conn| conn.peer.uid == hold.asked.uid) {
            return Ok(());
        }
        hold.items.iter().try_for_each(|item| self.may(id, Action::Force, &item.key))
    }

    /// Whether a peer may take this action on a key.
    pub(crate) fn may(&self, id: ConnId, action: Action, key: &Key) -> Result<()> {
        self.permitted(id, action, key, || what(action, key))
    }

    fn permitted(
        &self,
        id: ConnId,
        action: Action,
        key: &Key,
        what: impl FnOnce() -> String,
    ) -> Result<()> {
        let Some(conn) = self.conns.peek(id) else { return Err(owner_gone()) };
        let (uid, owner) = (conn.peer.uid, self.about.uid);
        if uid == 0 || uid == owner {
            return Ok(());
        }
        let who = self.effective.config.permissions.who(action, key);
        if who.includes(|| groups_of(conn)) {
            return Ok(());
        }
        let (what, only) = (what(), who.only(owner));
        let file = self.effective.file().display();
        Err(denied(format!("uid {uid} may not {what}; {only} may do so"))
            .hint(format!("see `[[permission]]` in {file} and canal.toml(5)")))
    }

    /// Checks whether a user may ask for another lease.
    pub(crate) fn check_leases(&self, uid: u32) -> Result<()> {
        let (used, most) =
            (self.decide.table().usage(uid), self.effective.config.limits.leases_per_user);
        if used.leases >= most {
            let message = format!("uid {uid} holds {} leases; the limit is {most}", used.leases);
            return Err(too_much(ErrorName::TooManyLeases, message, "leases_per_user"));
        }
        Ok(())
    }

    /// Checks whether a user may ask for these items. The check comes before the request is
    /// recorded, so over an engine it does not count requests that are still in flight.
    pub(crate) fn check_quota(&self, uid: u32, items: &[Item]) -> Result<()> {
        let used = self.decide.table().usage(uid);
        let most = self.effective.config.limits.key_bytes_per_user;
        if used.key_bytes.saturating_add(room_of(items)) > most {
            let message = format!(
                "the keys that uid {uid} holds and waits for take up {} bytes; the limit is {most}",
                used.key_bytes
            );
            return Err(too_much(ErrorName::TooManyKeys, message, "key_bytes_per_user"));
        }
        Ok(())
    }

    /// Reserves room in the journal for an entry for which no request has reserved any.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Result<()> {
        self.decide.ledger_mut().admit_bytes(bytes).map_err(|error| disk_full(&error))
    }
}

/// The failure for a user who would take more than the limit.
fn too_much(name: ErrorName, message: String, setting: &str) -> Failure {
    tracing::warn!("{message}; refusing more");
    let hint = format!("release some first, or raise `{setting}` in the configuration");
    Failure::new(name, message).hint(hint)
}

fn what(action: Action, key: &Key) -> String {
    match action {
        Action::Hold => format!("hold `{key}`"),
        Action::Resize => format!("resize `{key}`"),
        Action::Force => format!("break other users' holds on `{key}`"),
        Action::Priority => format!("ask for `{key}` with a priority above 0"),
    }
}

fn groups_of(conn: &Connection) -> Vec<u32> {
    let more = peer::groups(conn.as_fd()).unwrap_or_else(|error| {
        tracing::warn!(%error, uid = conn.peer.uid, "cannot read the groups of a peer");
        Vec::new()
    });
    let mut groups = vec![conn.peer.gid];
    groups.extend(more);
    groups
}

/// Restricts a connection, and enforces its restrictions.
impl Server {
    pub(crate) fn restrict(&mut self, caller: &Caller, restrict: &Restrict) -> Result {
        let keys = restrict.keys.iter().map(|key| items::key(key.strip_suffix('/').unwrap_or(key)));
        let keys = keys.collect::<Result<Vec<Key>>>()?;
        let Some(conn) = self.conns.get(caller.id) else { return Err(owner_gone()) };
        if !conn.restriction.get_or_insert_default().add(keys) {
            return Err(denied("this connection was restricted too many times"));
        }
        Ok(Step::done())
    }

    /// Whether the restrictions of a connection allow a call.
    pub(crate) fn may_call(&self, id: ConnId, asked: &Asked) -> Result<()> {
        let restriction = self.conns.peek(id).and_then(|conn| conn.restriction.as_ref());
        let Some(restriction) = restriction else { return Ok(()) };
        let allows = match asked {
            Asked::Collect(collect) => restriction.allows(&collect.items),
            Asked::Release(release) => of_handle(release).is_some() && release.owner_fd.is_none(),
            _ => asked.is(Trait::IsUnrestricted),
        };
        if allows { Ok(()) } else { Err(denied(restriction.words())) }
    }
}

/// The handle of a release that names nothing else.
pub(super) fn of_handle(release: &Release) -> Option<Handle> {
    let others = release.key.is_some() || release.all || release.token.is_some();
    release.handle.filter(|_| !others)
}

/// Finds the process that will own the lock of a call.
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
                other_owner(conn.peer, fd, self.decide.is_shared())?
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
pub(super) fn checked(owner: OwnerFound) -> Result<OwnerFound> {
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

/// Finds the frame that encloses the frame of a new request.
///
/// Invariant: the daemon accepts a named frame only if the kernel confirms that the future owner of
/// the lock is the process of that frame, or descends from it. A process that was started from
/// outside a session (by a build server, say) does not belong to the session, whatever its
/// environment contains.
///
/// A lease belongs to no process. A command under a lock over nodes, and its helpers, prove their
/// place by the handle of the lease.
impl Server {
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
        let innermost = |name: &str| {
            let found = parse(name).and_then(|named| self.innermost(named, process, owner.uid));
            if found.is_none() {
                tracing::debug!(
                    pid = process.pid,
                    frame = name,
                    "the named frame does not enclose this process"
                );
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

    fn innermost(&self, named: FrameId, process: ProcessId, uid: u32) -> Option<FrameId> {
        if !self.may_enclose(named, uid) {
            return None;
        }
        // The pid belongs to this process while the process exists. The filter after the search
        // checks that.
        let Found::Same(pidfd) = find(process) else { return None };
        let found = self.innermost_above(process.pid, named, uid);
        found.filter(|_| pidfd.pid() == Some(process.pid))
    }

    /// The innermost frame from the process `pid` up to the frame `named`. If the process of a
    /// frame is alive now, it had its pid during the search as well, so no other process had that
    /// pid.
    fn innermost_above(&self, pid: u32, named: FrameId, uid: u32) -> Option<FrameId> {
        let table = self.decide.table();
        let session = table.session(named);
        let mut innermost = None;
        for pid in ancestors(pid).take(ANCESTORS_MAX) {
            let mut frames = table.frames_of_number(self.decide.host(), pid);
            let Some(frame) = frames.find(|frame| self.may_enclose(*frame, uid)) else { continue };
            if table.session(frame) == session {
                innermost = innermost.or(Some(frame));
            }
            if frame == named {
                return innermost;
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
