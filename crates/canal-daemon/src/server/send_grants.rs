//! Sends grants, each after a check of the waiter's process.
//!
//! Invariant: the grant of a lease is sent only after the lease is durable. The grant of a part of
//! a request over nodes is sent at once, and its confirmation only after the lease is durable.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::calls::call::{Answer, ConnId};
use crate::calls::in_flight::Completion;
use crate::net::call_state::CallState;
use crate::processes::identify_owner::{self, cannot_watch, peer_pidfd};
use crate::server::Server;
use crate::server::call_step::{Result, Step};
use crate::view::visible_table::Shown;
use crate::wording::{cannot, given_up, not_held, owner_gone, pid_of};
use canal_core::{Change, FrameId, FrameState, Granted, Owner, RequestId, Token};
use canal_protocol::{
    ConfirmedAt, DeadlinePageFound, DeadlinePageQuery, ErrorName, Failure, Wrapper,
};
use canal_sys::pidfd::Pidfd;
use canal_sys::process;

impl Server {
    /// Offers a grant to its waiter, after a check of the waiter's process. Returns the call that
    /// this ends, and its result.
    pub(crate) fn offer(&mut self, granted: Granted) -> Option<(ConnId, Result)> {
        let request = granted.request;
        if self.decide.in_flight.has(&Change::Withdraw { request }) {
            return Some((self.end_waiter(request)?, Err(given_up())));
        }
        let table = self.decide.table();
        if table.hold(granted.token).is_none() {
            // A later withdrawal or death has taken it back.
            let is_known = table.waiter(request).is_some() || table.hold_of(request).is_some();
            let conn = if is_known { None } else { self.end_waiter(request) };
            return Some((conn?, Err(owner_gone())));
        }
        if self.decide.in_flight.has(&Change::Suspend { request }) {
            return None;
        }
        if !self.may_be_told(granted.token) {
            // No client received it before history was lost: it is asked for again at the same
            // place in the queue.
            self.propose(Change::Suspend { request });
            self.propose(Change::Resume { request });
            return None;
        }
        let conn = self.conns.waiter(request);
        let stopped = self.look_at(conn, &granted);
        if let Ok(true) = stopped {
            self.suspend(request, Completion::Nothing);
            return None;
        }
        let conn = self.end_waiter(request);
        let step = match stopped {
            Ok(_) => self.tell_grant(conn?, granted),
            Err(failure) if failure.name == ErrorName::OwnerGone => {
                self.end(granted.frame);
                Err(failure)
            }
            Err(failure) => Ok(Step::GiveBack(request, failure)),
        };
        Some((conn?, step))
    }

    /// Whether a grant that no client has received yet may be sent.
    pub(crate) fn may_be_told(&self, token: Token) -> bool {
        #[cfg(test)]
        if crate::sim::is_broken(crate::sim::Rule::OldGrantsAreAskedAnew) {
            return true;
        }
        self.decide.table().may_be_told(token)
    }

    /// Checks the process of a granted waiter. Returns whether it is stopped or frozen: the waiter
    /// then keeps its place, and others overtake it.
    ///
    /// # Errors
    /// The process is gone, or cannot be watched, so it cannot have the lock.
    fn look_at(&mut self, conn: Option<ConnId>, granted: &Granted) -> Result<bool> {
        let hold = self.decide.table().hold(granted.token).ok_or_else(owner_gone)?;
        let asked = hold.asked.clone();
        if let Some(conn) = conn {
            self.watch_owner(conn, granted.frame, None)?;
        }
        if self.owners.of(granted.frame).is_some_and(Pidfd::has_ended) {
            return Err(owner_gone());
        }
        Ok(self.is_party_stopped(&asked, conn))
    }

    /// Ensures that the owner of a frame is watched. `pidfd` is that of the owner, if the caller
    /// has it.
    ///
    /// # Errors
    /// The owner has ended, or cannot be watched. The grant must not be sent.
    pub(crate) fn watch_owner(
        &mut self,
        id: ConnId,
        frame: FrameId,
        pidfd: Option<Pidfd>,
    ) -> Result<()> {
        if self.owners.of(frame).is_some() {
            return Ok(());
        }
        let process = match self.decide.table().frame(frame) {
            Some(state) if state.lease.is_some() => return Ok(()),
            Some(FrameState { owner: Owner::Process(process), .. }) => Some(*process),
            _ => None,
        };
        if process.is_some_and(|process| self.owners.watch_again(frame, process)) {
            return Ok(());
        }
        let Some(conn) = self.conns.peek(id) else { return Err(owner_gone()) };
        // The client of `canal acquire --pid` is not the owner.
        let other = process.filter(|process| conn.process != Some(*process));
        let pidfd = match (pidfd, other) {
            (Some(pidfd), _) => pidfd,
            (None, Some(process)) => match identify_owner::find(process) {
                process::Found::Same(pidfd) => pidfd,
                process::Found::Gone => return Err(owner_gone()),
                process::Found::Unknown(error) => return Err(cannot_watch(&error)),
            },
            (None, None) => peer_pidfd(conn.as_fd(), conn.accepted_ticks)?,
        };
        // Over an engine, the owner may have died while its request was on the way into the log.
        if other.is_some() && pidfd.has_ended() {
            return Err(owner_gone());
        }
        self.owners.watch(frame, process, pidfd).map_err(|error| cannot_watch(&error))
    }

    /// Sends a grant, if its client may still have it: the configuration may have changed since the
    /// request.
    pub(crate) fn tell_grant(&mut self, id: ConnId, granted: Granted) -> Result {
        let Some(hold) = self.decide.table().hold(granted.token) else { return Err(owner_gone()) };
        // The priority only counted for the wait, and an operator may have raised it.
        if let Err(failure) = self.may_hold(id, &hold.asked.items, 0) {
            tracing::info!(token = granted.token.0, "took a grant back: {}", failure.message);
            let message = format!("{} since the configuration changed", failure.message);
            return Ok(Step::GiveBack(granted.request, Failure { message, ..failure }));
        }
        tracing::debug!(
            token = granted.token.0,
            session = %format_args!("s{}", self.decide.table().session(hold.frame)),
            pid = pid_of(&hold.asked.owner),
            keys = ?hold.asked.items.iter().map(|item| &item.key).collect::<Vec<_>>(),
            "granted"
        );
        Ok(self.send_grant_or_take_back(id, granted))
    }

    /// Sends a grant. A hold whose grant cannot be sent ends.
    pub(crate) fn send_grant_or_take_back(&mut self, id: ConnId, granted: Granted) -> Step {
        let request = granted.request;
        self.send_grant(id, granted).unwrap_or_else(|failure| Step::GiveBack(request, failure))
    }

    fn send_grant(&mut self, id: ConnId, granted: Granted) -> Result {
        let request = granted.request;
        let Some(hold) = self.decide.table().hold(granted.token) else { return Err(owner_gone()) };
        let (token, provisional, asked) = (hold.token, hold.provisional, hold.asked.clone());
        let key = hold.items.first().map(|item| item.key.clone());
        if self.decide.ledger().is_untold_lease(token) {
            return Ok(Step::Wait(CallState::Stores(request, Some(Box::new(granted)))));
        }
        let mut fds = Vec::new();
        if asked.children {
            let fifo = self.children.make(token, asked.tag);
            fds.push(fifo.map_err(cannot("create the FIFO for `--with-children`"))?);
        }
        let form = self.conns.peek(id).and_then(|conn| conn.asked.jobserver);
        let mut jobserver_path = None;
        if let Some((key, form)) = key.zip(form) {
            let ends = self.jobservers.serve((token, asked.tag, &key), form, asked.uid);
            let ends = ends.map_err(cannot("create the FIFOs for `--jobserver`"))?;
            jobserver_path = ends.path.and_then(|path| path.to_str().map(str::to_owned));
            fds.extend([ends.offers, ends.returns]);
        }
        // A lease outlives the membership of this host. All other holds can be lost before the
        // client reads the grant.
        let is_lease = matches!(asked.owner, Owner::Lease(_));
        let page = if is_lease { None } else { self.add_page(&mut fds)? };
        self.decide.record_grant(token).map_err(cannot("record the owner"))?;
        let Some(conn) = self.conns.get(id) else { return Err(owner_gone()) };
        let shown = Shown::to(conn.peer.uid, self.decide.ledger(), &self.leases, &self.owners);
        let Some(hold) = shown.table.hold(token) else { return Err(owner_gone()) };
        let mut grant = shown.grant(hold, &granted);
        grant.notes = self.told_sizes.notes(self.decide.table(), &asked, Some(token));
        grant.notes.append(&mut conn.asked.key_notes);
        grant.children_fd = asked.children.then_some(0);
        grant.offers_fd = form.map(|_| 1);
        grant.returns_fd = form.map(|_| 2);
        grant.jobserver_path = jobserver_path;
        grant.deadline_fd = page.map(|page| page.deadline_fd);
        grant.liveness_fd = page.map(|page| page.liveness_fd);
        let closes_on_grant = conn.asked.closes_on_grant && conn.calls.is_empty();
        if provisional {
            self.waiters.unclaimed.remove(&request);
            conn.provisional.push(request);
        } else if !closes_on_grant {
            conn.untold = Some(request);
        }
        Ok(Step::Answer(Answer { fds, closes: closes_on_grant, ..Answer::reply(&grant) }))
    }

    /// The next step of a call that waited for its lease to be durable. A lease that cannot be made
    /// durable is taken back.
    pub(crate) fn step_of_lease(
        &mut self,
        id: ConnId,
        request: RequestId,
        granted: Option<Box<Granted>>,
        stored: &io::Result<()>,
    ) -> Result {
        let Some(hold) = self.decide.table().hold_of(request) else {
            let message = "the daemon took the lease back before its client got it";
            return Err(Failure::new(ErrorName::LeaseLost, message));
        };
        Ok(match (stored, granted) {
            (Ok(()), Some(granted)) => self.send_grant_or_take_back(id, *granted),
            (Ok(()), None) => Step::reply(&ConfirmedAt { token: hold.token.0 }),
            (Err(error), _) => {
                Step::GiveBack(request, cannot("store the lease to survive a reboot")(error))
            }
        })
    }

    /// Refuses a client that would leave its command without a supervisor over an engine.
    pub(crate) fn check_wrapper(&self, wrapper: Option<Wrapper>) -> Result<()> {
        // This applies even while there is no page: a request that arrives before this host is a
        // member is granted later.
        if wrapper != Some(Wrapper::Exec) || !self.decide.is_shared() {
            return Ok(());
        }
        let message = "a lock with an engine needs a supervisor that ends the command in time if \
                       the lock is lost";
        Err(Failure::new(ErrorName::SupervisorRequired, message))
    }

    /// Gives the deadline page to the client that runs the command of a holder. The page exists
    /// only while the daemon works over an engine and is a member there.
    pub(crate) fn page(&self, query: &DeadlinePageQuery) -> Result {
        if !self.decide.is_shared() {
            let message = "this daemon has no engine, so locks have no deadline";
            return Err(Failure::new(ErrorName::Unsupported, message));
        }
        if let Some(why) = query.token.and_then(|token| self.decide.why_lost(Token(token))) {
            let message = "the lock is lost, and the daemon ended its process";
            return Err(Failure::new(ErrorName::LeaseLost, message).because(why.word()));
        }
        let not_held = || not_held("no hold of this host has this tag");
        let table = self.decide.table();
        let frame = table.hold_tagged(query.tag).and_then(|hold| table.frame(hold.frame));
        if frame.is_none_or(|frame| frame.host != self.decide.host()) {
            return Err(not_held());
        }
        let mut fds = Vec::new();
        let found = self.add_page(&mut fds)?.ok_or_else(not_held)?;
        Ok(Step::Answer(Answer { fds, ..Answer::reply(&found) }))
    }

    /// Adds the descriptors of the page, if there is one.
    fn add_page(&self, fds: &mut Vec<OwnedFd>) -> Result<Option<DeadlinePageFound>> {
        self.decide.add_page(fds).map_err(|error| {
            let message = format!("cannot pass on the deadline page: {error}");
            Failure::new(ErrorName::TooManyConnections, message)
        })
    }
}
