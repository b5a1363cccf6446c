//! Proposes changes to the log. `follow.rs` continues once the log has returned them.
//!
//! The embedded journal returns a change within the turn. An engine reports later at which place
//! among the changes of all hosts it landed. Until then the change is [in
//! flight](crate::calls::in_flight).
//!
//! Invariant: a proposal changes nothing in the table. So a caller sees the same table before and
//! after it.

use std::sync::Arc;

use crate::calls::completion::Completion;
use crate::calls::conn_id::ConnId;
use crate::calls::pending_acquire::PendingAcquire;
use crate::host::Ticket;
use crate::net::call_state::Awaiting;
use crate::server::Server;
use crate::server::dispatch::step::Step;
use canal_core::{Change, FrameId, RequestId};
use canal_protocol::Failure;

impl Server {
    /// Proposes a change that no call waits for.
    pub(crate) fn propose(&mut self, change: Change) {
        let then = match change {
            Change::End { frame } => Completion::End { frame },
            _ => Completion::Nothing,
        };
        self.propose_and(change, then);
    }

    /// Proposes a change that no call waits for. Once it is applied, `then` determines the next
    /// step.
    pub(crate) fn propose_and(&mut self, change: Change, then: Completion) {
        // Without a membership, the change has lost its subject.
        if self.ledger.is_member() {
            self.enqueue(change, then);
        }
    }

    /// Proposes a change for a call. Returns the next step of the call.
    ///
    /// # Errors
    /// The change cannot be proposed.
    pub(super) fn propose_for(
        &mut self,
        id: ConnId,
        change: Change,
        then: Completion,
    ) -> Result<Step, Failure> {
        let patience = match &then {
            Completion::Ask(newcomer) => Some(newcomer.patience()),
            _ => None,
        };
        let must_not_ask = || {
            let cluster = self.cluster.as_ref();
            cluster.is_some_and(|cluster| cluster.must_not_ask(&self.ledger.table))
        };
        if !self.ledger.is_member() || patience.is_some() && must_not_ask() {
            return self.without_membership(then);
        }
        let ticket = self.enqueue(change, then);
        Ok(match patience {
            Some(patience) => self.wait_for_log(id, Awaiting::Request(ticket), patience),
            None => self.wait_for_log(id, Awaiting::Change(ticket), None),
        })
    }

    fn enqueue(&mut self, change: Change, then: Completion) -> Ticket {
        let subject = Subject::of(&change);
        let ticket = match &mut self.cluster {
            Some(cluster) => cluster.propose(change),
            None => self.ledger.propose(change),
        };
        self.in_flight.add(ticket, then);
        match subject {
            Some(Subject::Withdrawn(request)) => self.in_flight.withdraw(request),
            Some(Subject::Suspended(request)) => self.in_flight.suspend(ticket, request),
            None => {}
        }
        ticket
    }

    /// Proposes a request, for the first time or again.
    pub(crate) fn ask(&self, mut newcomer: PendingAcquire) -> Step {
        // The host and the parent may have changed since the request was deferred.
        let (host, table) = (self.ledger.host, &self.ledger.table);
        let lives = |frame: &FrameId| table.frame(*frame).is_some_and(|state| !state.ended);
        let parent = newcomer.request.parent.filter(lives);
        if (newcomer.request.host, newcomer.request.parent) != (host, parent) {
            let request = Arc::make_mut(&mut newcomer.request);
            (request.host, request.parent) = (host, parent);
        }
        Step::ask(newcomer)
    }

    /// Whether a withdrawal of this request is in flight. Its client then gets no further message.
    pub(crate) fn is_leaving(&self, request: RequestId) -> bool {
        self.in_flight.is_leaving(request)
    }

    /// Whether a suspension of this request is in flight. Its grant must not be sent meanwhile: the
    /// suspension may take it back, and other hosts may have read that already.
    pub(crate) fn is_being_suspended(&self, request: RequestId) -> bool {
        self.in_flight.is_being_suspended(request)
    }

    /// The next step of a call whose change cannot be proposed. A request is proposed again once
    /// this host is a member; any other call fails.
    pub(super) fn without_membership(&mut self, then: Completion) -> Result<Step, Failure> {
        match then {
            Completion::Ask(newcomer) => self.wait_for_membership(newcomer),
            _ => Err(self.not_a_member()),
        }
    }
}

/// The request that a change in flight withdraws or suspends.
enum Subject {
    Withdrawn(RequestId),
    Suspended(RequestId),
}

impl Subject {
    fn of(change: &Change) -> Option<Self> {
        match change {
            Change::Withdraw { request, .. } => Some(Self::Withdrawn(*request)),
            Change::Suspend { request } => Some(Self::Suspended(*request)),
            _ => None,
        }
    }
}
