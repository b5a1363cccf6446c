//! Resumes a request whose client asks again: after a lost connection, or after another daemon has
//! replaced the one that the client asked first.
//!
//! Invariant: a request is answered on one connection, the last one that asked for it.

use crate::calls::call::ConnId;
use crate::net::call_state::{Awaiting, CallState, PendingAcquire, PendingCall};
use crate::processes::identify_owner::{OwnerFound, cannot_watch};
use crate::server::Server;
use crate::server::call_step::{Result, Step};
use crate::waiters::Open;
use crate::wording::{bad, owner_gone, superseded};
use canal_core::{Change, FrameState, Owner, RequestId, Wait};
use canal_protocol::{Acquire, ErrorName};

impl Server {
    /// Resumes a request that is on its way into the log, or that waits for the membership of this
    /// host, after its client lost its connection. `None` if there is no such request.
    pub(super) fn attach_in_flight(
        &mut self,
        id: ConnId,
        acquire: &Acquire,
        owner: &OwnerFound,
    ) -> Result<Option<Step>> {
        let waiting = self.conns.asks_for(acquire.tag);
        let in_flight = self.decide.in_flight.tagged(acquire.tag);
        let known = waiting.map(|(_, request)| request).or(in_flight.map(|(_, request)| request));
        let Some(request) = known.cloned() else { return Ok(None) };
        if (request.uid, &request.owner) != (owner.uid, &owner.owner) {
            return Err(bad("the tag names a request of another process or lease"));
        }
        let (before, ticket) = (waiting.map(|(id, _)| id), in_flight.map(|(ticket, _)| ticket));
        if let Some(ticket) = ticket {
            self.decide.in_flight.pass_on(ticket, id);
        }
        let what = if let Some(before) = before
            && let CallState::Log(wait) = self.conns.hand_over(before, id)
        {
            self.carry_out(before, Err(superseded(ErrorName::BadRequest)));
            wait.what
        } else {
            // The call ended before its request came out of the log.
            let Some(ticket) = ticket else { return Ok(None) };
            let pidfd = owner.pidfd.as_ref().and_then(|pidfd| pidfd.try_clone().ok());
            let most = self.effective.config.limits.waiters_per_user;
            let may_wait = acquire.wait_ms != Some(0);
            let crowd = (may_wait && request.wait == Wait::No).then_some(most);
            let newcomer = PendingAcquire { crowd, ..PendingAcquire::new(request, pidfd) };
            Awaiting::Change(ticket, PendingCall::Ask(newcomer))
        };
        Ok(Some(self.wait_for_log(id, what)))
    }

    /// The frame of a request, if it belongs to this user and owner.
    pub(super) fn own_frame(&self, request: RequestId, by: (u32, &Owner)) -> Option<&FrameState> {
        let table = self.decide.table();
        let frame = table.frame(table.frame_of_request(request)?);
        frame.filter(|frame| (frame.uid, &frame.owner) == by)
    }

    /// Resumes a known request: its client lost its connection, or asked an earlier daemon first.
    pub(super) fn attach_again(
        &mut self,
        id: ConnId,
        request: RequestId,
        owner: OwnerFound,
    ) -> Result {
        let table = self.decide.table();
        let waiter = table.waiter(request);
        let own = self.own_frame(request, (owner.uid, &owner.owner));
        let Some(frame) = own.filter(|it| it.host == self.decide.host()).map(|it| it.id) else {
            return Err(bad("the tag names a request of another process or lease"));
        };
        // A request also waits if its grant has not been sent yet.
        if waiter.is_none() && self.waiters.get(request).is_none() {
            let told = |token| {
                self.may_be_told(token)
                    || self.decide.cluster().is_some_and(|it| it.was_told(token))
            };
            let hold = table.hold_of(request);
            if !self.decide.may_grant() || hold.is_some_and(|hold| !told(hold.token)) {
                // The client gets it as soon as this host is sure of it.
                let hold = hold.filter(|hold| hold.asked.wait != Wait::No);
                let hold = hold.ok_or_else(|| self.decide.not_a_member())?;
                self.waiters.add(request, Open::of_hold(table, hold));
                self.waiters.queue_grant_again(table, hold);
                return Ok(self.wait_for_grant(id, request));
            }
            let granted = hold.map(|hold| table.granted(hold)).ok_or_else(owner_gone)?;
            self.watch_owner(id, frame, owner.pidfd)?;
            // From here, the grant depends on this connection alone.
            self.conns.disown(Some(request));
            return Ok(self.send_grant_or_take_back(id, granted));
        }
        if let Some(waiter) = self.waiters.get(request)
            && let Some(before) = self.conns.waiter(request)
        {
            // The client of a part may come back: it only lost the connection.
            let is_part = waiter.open.asked.over_nodes.is_some();
            let name = if is_part { ErrorName::Gone } else { ErrorName::BadRequest };
            self.carry_out(before, Err(superseded(name)));
        }
        let provisional =
            self.decide.table().waiter(request).is_some_and(|waiter| waiter.request.provisional);
        if provisional && let Some(pidfd) = owner.pidfd {
            self.owners.watch(frame, None, pidfd).map_err(|error| cannot_watch(&error))?;
        }
        let step = self.wait_for_grant(id, request);
        self.propose(Change::Resume { request });
        Ok(step)
    }
}
