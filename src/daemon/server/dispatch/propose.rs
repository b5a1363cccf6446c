//! Proposes changes to the log. `follow.rs` continues once the log has returned them.
//!
//! The embedded journal returns a change within the turn. An engine reports later at which place
//! among the changes of all hosts it landed. Until then the change is [in
//! flight](crate::daemon::calls::in_flight).
//!
//! Invariant: a proposal changes nothing in the table. So a caller sees the same table before and
//! after it.

use std::sync::Arc;

use crate::core::{Change, FrameId, RequestId};
use crate::daemon::calls::completion::Completion;
use crate::daemon::calls::in_flight::Awaiting;
use crate::daemon::calls::pending_acquire::PendingAcquire;
use crate::daemon::server::Server;
use crate::daemon::server::dispatch::step::Step;
use crate::protocol::Failure;

impl Server {
    /// Proposes a change that no call waits for.
    pub(crate) fn propose(&mut self, change: Change) {
        let then = match change {
            Change::End { frame } => Completion::End { frame },
            _ => Completion::Nothing,
        };
        // Without a membership, the change has lost its subject.
        let _ = self.propose_for(change, then);
    }

    /// Proposes a change. Once it is applied, `then` determines the next step.
    ///
    /// # Errors
    /// The change cannot be proposed, so its call fails.
    pub(crate) fn propose_for(&mut self, change: Change, then: Completion) -> Result<(), Failure> {
        let asks = matches!(then, Completion::Ask(_));
        let must_not_ask = || {
            let cluster = self.cluster.as_ref();
            cluster.is_some_and(|cluster| cluster.must_not_ask(&self.ledger.table))
        };
        if !self.ledger.is_member() || asks && must_not_ask() {
            return self.without_membership(then);
        }
        let patience = match &then {
            Completion::Ask(newcomer) => newcomer.patience(),
            _ => None,
        };
        let id = then.conn();
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
        if let Some(id) = id {
            let what = if asks { Awaiting::Request(ticket) } else { Awaiting::Change(ticket) };
            let _ = self.wait_for_log(id, what, patience);
        }
        Ok(())
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

    /// Handles a change that cannot be proposed because its subject is lost. A request is proposed
    /// again once this host is a member; any other call fails.
    pub(super) fn without_membership(&mut self, then: Completion) -> Result<(), Failure> {
        match then {
            Completion::Ask(newcomer) => self.wait_for_membership(newcomer).map(|_| ()),
            then if then.conn().is_some() => Err(self.not_a_member()),
            _ => Ok(()),
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
