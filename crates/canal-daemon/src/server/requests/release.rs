//! Releases holds, and confirms that an owner received its grant.

use std::sync::Arc;

use crate::calls::in_flight::Applied;
use crate::calls::parameters;
use crate::config::permissions::Action;
use crate::history::recorder::Cause;
use crate::lease_deadlines::name_of;
use crate::net::call_state::PendingCall;
use crate::processes::identify_owner::OwnerFound;
use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step};
use crate::server::check_permissions_and_quota::of_handle;
use crate::view::visible_table::Shown;
use crate::wording::{bad, denied, not_held, owner_words, pid_of};
use canal_core::{
    Change, FrameId, HoldState, Key, Outcome, Owner, Release as Giving, RequestId, Token,
};
use canal_protocol::{ErrorName, Failure, Release, Released, ReleasedHold, RequestTag};
use canal_sys::peer::Credentials;

impl Server {
    pub(crate) fn release(&mut self, caller: &mut Caller, release: &Release) -> Result {
        if let Some(handle) = of_handle(release) {
            return self.release_lease(caller, handle);
        }
        Ok(give_back(self.giving(caller, release)?))
    }

    /// Reports which holds a release would end, without ending them.
    pub(crate) fn would_release(&mut self, caller: &mut Caller, release: &Release) -> Result {
        let giving = match of_handle(release) {
            Some(handle) => Giving::All { frame: self.live_lease(caller.peer, name_of(handle))? },
            None => self.giving(caller, release)?,
        };
        let holds = self.decide.table().holds_of(&giving);
        if holds.is_empty() {
            return Err(self.not_held(&giving));
        }
        let shown = self.shown(caller.peer.uid);
        let released = holds.iter().map(|hold| match &giving {
            Giving::Latest { key, .. } => told(&shown, hold, std::slice::from_ref(key)),
            Giving::All { .. } | Giving::Hold { .. } => told(&shown, hold, &hold.keys()),
        });
        Ok(Step::reply(&Released { released: released.collect() }))
    }

    /// The subject of a release that does not name a handle.
    fn giving(&mut self, caller: &mut Caller, release: &Release) -> Result<Giving> {
        let Release { key, all, token, handle, .. } = release;
        Ok(match (key, *all, *token, *handle) {
            (Some(key), false, token, None) => {
                let key = parameters::key(key.clone())?;
                let (pid, frame) = self.frame_of_owner(caller, release.owner_fd)?;
                let frame = frame.ok_or_else(|| self.does_not_hold(pid, &key))?;
                if let Some(token) = token {
                    self.check_latest(frame, &key, Token(token))?;
                }
                Giving::Latest { frame, key }
            }
            (None, true, None, None) => {
                let (pid, frame) = self.frame_of_owner(caller, release.owner_fd)?;
                let nothing = || not_held(format!("process {pid} holds no lock"));
                Giving::All { frame: frame.ok_or_else(nothing)? }
            }
            (None, false, Some(token), None) => {
                let token = Token(token);
                let Some(hold) = self.decide.table().hold_to_keep(token) else {
                    return Err(no_holder(token));
                };
                let is_here = hold.asked.host == self.decide.host();
                let is_own = |it: OwnerFound| it.owner == hold.asked.owner;
                // The peer itself may be the process that owns it.
                let forced = !is_here || !self.owner(caller, None).is_ok_and(is_own);
                if forced && caller.peer.uid != hold.asked.uid {
                    let may = |key| self.may(caller.id, Action::Force, key);
                    hold.items.iter().try_for_each(|item| may(&item.key))?;
                }
                Giving::Hold { token, forced }
            }
            _ => {
                let message = "give exactly one of `key`, `all`, `token` and `handle`; only a \
                               `key` can have a `token` with it";
                return Err(bad(message));
            }
        })
    }

    /// Checks that a hold is the one that a release of the key would end.
    fn check_latest(&self, frame: FrameId, key: &Key, token: Token) -> Result<()> {
        let table = self.decide.table();
        if table.latest_hold(frame, key) == Some(token) {
            return Ok(());
        }
        let hold = table.hold(token).filter(|hold| hold.frame == frame);
        let holds = hold.is_some_and(|hold| hold.items.iter().any(|item| item.key == *key));
        let message = format!("token {token} does not belong to the latest hold on `{key}`");
        let mut failure = not_held(message);
        failure.reason = holds.then(|| "changed".into());
        Err(failure)
    }

    /// Answers a release that was applied to the table. `before` are the holds before it.
    pub(crate) fn given_back(
        &self,
        peer: Credentials,
        giving: &Giving,
        before: &[Arc<HoldState>],
        applied: &Applied,
    ) -> Result {
        let shown = self.shown(peer.uid);
        // Usually a single hold is released. Its description is large, so it gets no spare room.
        let mut released = Vec::with_capacity(1);
        released.extend(applied.outcomes.iter().filter_map(|outcome| {
            let Outcome::Released { token, keys, .. } = outcome else { return None };
            let hold = before.iter().find(|hold| hold.token == *token)?;
            Some(told(&shown, hold, keys))
        }));
        if released.is_empty() {
            return Err(self.not_held(giving));
        }
        if let Giving::Hold { token, forced: true } = giving
            && let Some(hold) = before.iter().find(|hold| hold.token == *token)
        {
            let keys: Vec<&str> = hold.items.iter().map(|item| item.key.as_str()).collect();
            tracing::info!(
                keys = %keys.join(", "),
                token = hold.token.0,
                holder = %owner_words(&hold.asked.owner),
                holder_uid = hold.asked.uid,
                command = ?hold.asked.command.0,
                by_uid = peer.uid,
                by_pid = peer.pid,
                "released by force"
            );
        }
        Ok(Step::reply(&Released { released }))
    }

    /// The process that releases something, and its frame.
    fn frame_of_owner(
        &mut self,
        caller: &mut Caller,
        owner_fd: Option<u32>,
    ) -> Result<(u32, Option<FrameId>)> {
        let owner = self.owner(caller, owner_fd)?.owner;
        Ok((pid_of(&owner), self.decide.table().frame_of(self.decide.host(), &owner)))
    }

    fn not_held(&self, giving: &Giving) -> Failure {
        match giving {
            Giving::Latest { frame, key } => {
                let frame = self.decide.table().frame(*frame);
                self.does_not_hold(frame.map_or(0, |frame| pid_of(&frame.owner)), key)
            }
            Giving::All { .. } => not_held("the process holds no lock"),
            Giving::Hold { token, .. } => no_holder(*token),
        }
    }

    /// The failure for a process without a hold on a key. It has a hint if a lease holds the key,
    /// because a process cannot release a lease by its key.
    fn does_not_hold(&self, pid: u32, key: &Key) -> Failure {
        let failure = not_held(match pid {
            0 => format!("the process does not hold `{key}`"),
            pid => format!("process {pid} does not hold `{key}`"),
        });
        let table = self.decide.table();
        let mut holds = table.holders(key).filter_map(|token| table.hold(token));
        if !holds.any(|hold| matches!(hold.asked.owner, Owner::Lease(_))) {
            return failure;
        }
        failure.hint(format!(
            "a lease holds `{key}`: release it with --handle or CANAL_HANDLE, or break it with \
             `canal release --force {key}`"
        ))
    }

    /// Notes that the client has read a provisional grant. The TTL of a lease restarts, because the
    /// client may have been stopped before it read the grant, and then cannot know how much was
    /// left.
    pub(crate) fn confirm(&mut self, caller: &Caller, confirm: &RequestTag) -> Result {
        let hold = self.decide.table().hold_tagged(confirm.tag).ok_or_else(taken_back)?;
        if ![0, hold.asked.uid].contains(&caller.peer.uid) {
            return Err(denied("the grant belongs to another user"));
        }
        let (request, frame, provisional) = (hold.request, hold.frame, hold.provisional);
        if hold.is_collecting() {
            return Err(bad(
                "use ConfirmAt, with a token, to confirm a part of a request on nodes",
            ));
        }
        let is_lease = matches!(hold.asked.owner, Owner::Lease(_));
        // A lease that has expired but has not yet ended in the table has no deadline.
        if hold.asked.over_nodes.is_none() && self.leases.left_ms(frame).is_some() {
            self.leases.begin(self.decide.table(), self.decide.host(), frame);
        }
        // Over an engine, the end of a lease may be in flight.
        let may_be_over = is_lease && self.decide.is_shared();
        if !provisional && !may_be_over {
            return Ok(Step::done());
        }
        self.waiters.unclaimed.remove(&request);
        self.conns.disown(Some(request));
        Ok(Step::Propose(Change::Confirm { request }, PendingCall::Confirm(request)))
    }

    /// Notes why the client of a waiting request is about to close its connection.
    pub(crate) fn abandon(&mut self, caller: &Caller, abandon: &RequestTag) -> Result {
        let table = self.decide.table();
        let waiter = table.tagged(abandon.tag).and_then(|request| table.waiter(request));
        let Some(waiter) = waiter.filter(|it| [0, it.request.uid].contains(&caller.peer.uid))
        else {
            return Err(Failure::new(ErrorName::UnknownTag, "no waiting request has this tag"));
        };
        self.observe.history.expect_end(waiter.id, Cause::Abandoned);
        Ok(Step::done())
    }

    /// Notes that the command of a hold is about to be ended because it ran for too long.
    pub(crate) fn overrun(&mut self, caller: &Caller, overrun: &RequestTag) -> Result {
        let hold = self.decide.table().hold_tagged(overrun.tag);
        let Some(hold) = hold.filter(|it| [0, it.asked.uid].contains(&caller.peer.uid)) else {
            return Err(Failure::new(ErrorName::UnknownTag, "no hold has this tag"));
        };
        self.observe.history.expect_end(hold.request, Cause::Overrun);
        Ok(Step::done())
    }

    /// Answers a confirmation that was applied to the table.
    pub(crate) fn confirmed(&mut self, request: RequestId) -> Result {
        // Over an engine, the hold may have ended in an entry before the confirmation.
        if self.decide.table().hold_of(request).is_none() {
            return Err(taken_back());
        }
        // A confirmation has no outcome, but its grant counts from here.
        self.due.changed = true;
        Ok(Step::done())
    }
}

/// The failure for a confirmation that arrives after the end of the hold.
fn taken_back() -> Failure {
    let message = "the daemon took the lock back before the confirmation";
    Failure::new(ErrorName::UnknownTag, message)
}

/// Proposes a release for a call.
pub(super) fn give_back(giving: Giving) -> Step {
    Step::Propose(Change::Release(giving.clone()), PendingCall::Release(giving))
}

/// A hold that a release has ended, or would end, with the released keys. The session of a hold is
/// still known, even if the frame ended with it.
fn told(shown: &Shown<'_>, hold: &HoldState, keys: &[Key]) -> ReleasedHold {
    let holder = shown.holder_briefly(hold, if let [key] = keys { Some(key) } else { None });
    let keys = keys.iter().map(|key| key.as_str().to_owned()).collect();
    ReleasedHold { token: hold.token.0, keys, holder }
}

/// The failure for a client that names a token without a hold.
fn no_holder(token: Token) -> Failure {
    let message = format!("no hold has token {token}");
    not_held(message).hint("run `canal status -v` to see the tokens")
}
