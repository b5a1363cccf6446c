//! Resumes a request whose client asks again: after a lost connection, or after another daemon has
//! replaced the one that the client asked first.
//!
//! Invariant: a request is answered on one connection, the last one that asked for it.

use crate::calls::conn_id::ConnId;
use crate::net::call_state::{Awaiting, CallState};
use crate::processes::owner_identity::{OwnerFound, cannot_watch};
use crate::server::Server;
use crate::server::dispatch::step::Step;
use crate::waiters::regrant::granted;
use canal_core::{Change, RequestId, Tag, Wait};
use canal_protocol::{ErrorName, Failure};

impl Server {
    /// Resumes a request that is on its way into the log, or that waits for the membership of this
    /// host, after its client lost its connection. `None` if there is no such request.
    pub(crate) fn attach_in_flight(
        &mut self,
        id: ConnId,
        tag: Tag,
        owner: &OwnerFound,
        more: bool,
    ) -> Result<Option<Step>, Failure> {
        let in_flight = self.in_flight.tagged(tag);
        let ticket = in_flight.as_ref().map(|(ticket, _)| *ticket);
        let newcomer = match in_flight {
            Some((_, newcomer)) => newcomer,
            None => match self.conns.awaiting_membership(tag) {
                Some(newcomer) => newcomer,
                None => return Ok(None),
            },
        };
        if !newcomer.is_of(owner) {
            let message = "the tag names a request of another process or lease";
            return Err(Failure::new(ErrorName::BadRequest, message));
        }
        let before = std::mem::replace(&mut newcomer.conn, id);
        newcomer.more = more;
        let patience = newcomer.patience();
        let mut what = ticket.map(Awaiting::Request);
        let still_waits = |ticket| self.conns.peek(before).is_some_and(|it| it.awaits(ticket));
        if ticket.is_none_or(still_waits)
            && let CallState::Log(wait) = self.conns.hand_over(before, id)
        {
            what = Some(wait.what);
            self.supersede(before, ErrorName::BadRequest);
        }
        Ok(what.map(|what| self.wait_for_log(id, what, patience)))
    }

    /// Sends a grant to a client that asks for it again, as soon as this host is sure of it.
    fn tell_later(&mut self, id: ConnId, request: RequestId, more: bool) -> Result<Step, Failure> {
        let table = &self.ledger.table;
        let hold = table.hold_of(request).filter(|hold| hold.asked.wait != Wait::No);
        let Some(hold) = hold else { return Err(self.not_a_member()) };
        self.waiters.queue_grant(granted(table, hold));
        self.waiters.add_granted(hold, table.session(hold.frame));
        Ok(self.wait_for_grant(id, request, more))
    }

    /// Resumes a known request: its client lost its connection, or asked an earlier daemon first.
    pub(crate) fn attach_again(
        &mut self,
        id: ConnId,
        request: RequestId,
        owner: OwnerFound,
        more: bool,
    ) -> Result<Step, Failure> {
        let table = &self.ledger.table;
        let waiter = table.waiter(request);
        let frame = waiter.map(|waiter| waiter.frame);
        let frame = frame.or_else(|| table.hold_of(request).map(|hold| hold.frame));
        let same = frame
            .and_then(|frame| table.frame(frame))
            .filter(|frame| frame.host == self.ledger.host)
            .is_some_and(|frame| frame.uid == owner.uid && frame.owner == owner.owner);
        let Some(frame) = frame.filter(|_| same) else {
            let message = "the tag names a request of another process or lease";
            return Err(Failure::new(ErrorName::BadRequest, message));
        };
        // A request also waits if its grant has not been sent yet.
        if waiter.is_none() && self.waiters.get(request).is_none() {
            let was_told = |token| self.cluster.as_ref().is_some_and(|it| it.was_told(token));
            let told = |token| self.may_be_told(token) || was_told(token);
            let hold = table.hold_of(request);
            if !self.is_sure() || hold.is_some_and(|hold| !told(hold.token)) {
                return self.tell_later(id, request, more);
            }
            return self.tell_again(id, request, frame, owner.pidfd);
        }
        if let Some(waiter) = self.waiters.get(request)
            && let Some(before) = waiter.conn
        {
            // The client of a part may come back: it only lost the connection.
            let name = match waiter.asked.request.over_nodes {
                Some(_) => ErrorName::Gone,
                None => ErrorName::BadRequest,
            };
            self.supersede(before, name);
        }
        let provisional =
            self.ledger.table.waiter(request).is_some_and(|waiter| waiter.request.provisional);
        if provisional && let Some(pidfd) = owner.pidfd {
            self.owners.watch(frame, None, pidfd).map_err(|error| cannot_watch(&error))?;
        }
        let step = self.wait_for_grant(id, request, more);
        self.waiters.resume(request);
        self.propose(Change::Resume { request });
        Ok(step)
    }
}
