//! Proposes changes to the log, and completes the calls that proposed them.
//!
//! The embedded journal applies a change as soon as it is proposed. An engine reports later at
//! which place among the changes of all hosts it landed; until then the change is [in
//! flight](crate::daemon::calls::in_flight).
//!
//! Invariant: the consequences of a change are reported and carried out only after the change was
//! applied at its place in the log.

use std::sync::Arc;

use crate::core::{Change, Entry, HoldState, RequestId, Revision, Withdrawal};
use crate::daemon::calls::completion::{Applied, Completion};
use crate::daemon::calls::conn_id::ConnId;
use crate::daemon::calls::in_flight::{Awaiting, Proposed};
use crate::daemon::calls::pending_acquire::PendingAcquire;
use crate::daemon::history::cause::Cause;
use crate::daemon::server::Server;
use crate::daemon::server::dispatch::late::ended_unseen;
use crate::daemon::server::dispatch::step::Step;
use crate::daemon::waiters::regrant::granted;
use crate::host::Ticket;
use crate::protocol::{ErrorName, Failure};

impl Server {
    /// Proposes a change that no call waits for.
    pub(crate) fn propose(&mut self, change: Change) {
        let then = match change {
            Change::End { frame } => Completion::End { frame },
            _ => Completion::Nothing,
        };
        self.propose_for(change, then);
    }

    /// Proposes a change. Once it is applied, `then` determines the next step.
    pub(super) fn propose_for(&mut self, change: Change, then: Completion) {
        if self.cluster.is_some() {
            return self.propose_to_engine(change, then);
        }
        let (revision, entry) = self.ledger.next_entry(change);
        let (applied, before) = self.follow(revision, &entry, &then);
        self.complete(applied, then, &before);
    }

    /// Repeats a request for a lock, or the question whether it would be granted, for a call that
    /// had to wait until then.
    pub(super) fn ask_again(&mut self, newcomer: PendingAcquire) {
        let id = newcomer.conn;
        let step = if newcomer.is_question { self.pose(newcomer) } else { Ok(self.ask(newcomer)) };
        self.carry_out(id, step);
    }

    /// Applies the next entry of either log, and notes its outcomes. Ends the calls of waiters that
    /// it refused or withdrew. Also returns the holds that a release by this host may have ended,
    /// because the table no longer has them.
    pub(crate) fn follow(
        &mut self,
        revision: Revision,
        entry: &Entry,
        then: &Completion,
    ) -> (Applied, Vec<Arc<HoldState>>) {
        let before = match then {
            Completion::Release(back) => self.holds_at_stake(&back.giving),
            _ => Vec::new(),
        };
        let cause = self.history.follows().then(|| Cause::of(&entry.change, then));
        let applied = self.ledger.apply_entry(revision, entry);
        self.hooks.stirred |= !applied.outcomes.is_empty();
        if let Some(cause) = cause {
            self.history.take_in(&cause, &applied, &self.ledger.table, self.ledger.host);
        }
        // A confirmation has no outcome, but its grant counts from here.
        self.due.changed |=
            !applied.outcomes.is_empty() || matches!(entry.change, Change::Confirm { .. });
        // When one of our incarnations is gone, its holds have ended, but their processes released
        // nothing and may still run. The daemon finds them in its own record before it joins.
        if self.ledger.is_member() || !matches!(entry.change, Change::HostGone { .. }) {
            let owner_ended = matches!(entry.change, Change::End { .. });
            for outcome in &applied.outcomes {
                if let Some((id, failure)) = self.note(outcome, owner_ended) {
                    self.carry_out(id, Err(failure));
                }
            }
        }
        (applied, before)
    }

    /// Completes a change of this host that has been applied.
    fn complete(&mut self, applied: Applied, then: Completion, before: &[Arc<HoldState>]) {
        let (id, step) = match then {
            Completion::Nothing => return,
            Completion::End { frame } => return self.ended(frame),
            Completion::Ask(newcomer) => (newcomer.conn, self.asked(newcomer, applied)),
            Completion::Question(newcomer) => (newcomer.conn, self.question(*newcomer)),
            Completion::Release(back) => (back.id, self.given_back(&back, before, &applied)),
            Completion::Renew(renewing) => (renewing.id, self.renewed(&renewing, &applied)),
            Completion::Resize(resizing) => (resizing.id, self.resized(&resizing, &applied)),
            Completion::Confirm { id, request } => (id, self.confirmed(request)),
            Completion::ConfirmAt { id, request } => (id, self.confirmed_at(id, request, &applied)),
        };
        self.carry_out(id, step);
    }

    fn propose_to_engine(&mut self, change: Change, then: Completion) {
        if !self.ledger.is_member() {
            return self.without_membership(then);
        }
        let Some(cluster) = &mut self.cluster else { return };
        if cluster.must_not_ask(&self.ledger.table) && matches!(then, Completion::Ask(_)) {
            return self.without_membership(then);
        }
        if let Change::Withdraw { request, .. } = &change {
            cluster.in_flight.withdraw(*request);
        }
        let patience = match &then {
            Completion::Ask(newcomer) => newcomer.patience(),
            _ => None,
        };
        let is_request = matches!(then, Completion::Ask(_));
        let suspends = match &change {
            Change::Suspend { request } => Some(*request),
            _ => None,
        };
        let ticket = cluster.propose(change);
        let id = then.conn();
        cluster.in_flight.add(ticket, then);
        if let Some(request) = suspends {
            cluster.in_flight.suspend(ticket, request);
        }
        if let Some(id) = id {
            let what =
                if is_request { Awaiting::Request(ticket) } else { Awaiting::Change(ticket) };
            let waiting = self.wait_for_log(id, what, patience);
            self.carry_out(id, Ok(Step::Wait(waiting)));
        }
    }

    /// Whether a withdrawal of this request is in flight. Its client then gets no further message.
    pub(crate) fn is_leaving(&self, request: RequestId) -> bool {
        self.cluster.as_ref().is_some_and(|it| it.in_flight.is_leaving(request))
    }

    /// Whether a suspension of this request is in flight. Its grant must not be sent meanwhile: the
    /// suspension may take it back, and other hosts may have read that already.
    pub(crate) fn is_being_suspended(&self, request: RequestId) -> bool {
        self.cluster.as_ref().is_some_and(|it| it.in_flight.is_being_suspended(request))
    }

    /// Handles a change of this host that was applied at its place in the engine's log.
    pub(crate) fn came_back(
        &mut self,
        proposed: Proposed,
        applied: Applied,
        before: &[Arc<HoldState>],
    ) {
        let Proposed { then, abandoned, .. } = proposed;
        if !abandoned {
            return self.complete(applied, then, before);
        }
        if let Completion::Ask(newcomer) = then {
            self.give_back_unwanted(&newcomer, applied.revision);
        }
    }

    /// Releases a request whose client has left or was sent a failure.
    fn give_back_unwanted(&mut self, newcomer: &PendingAcquire, revision: Revision) {
        let request = RequestId(revision.0);
        self.waiters.remove(request);
        self.waiters.drop_grant(request);
        let table = &self.ledger.table;
        if table.tagged(newcomer.request.tag) == Some(request) {
            self.propose(Change::Withdraw { request, why: Withdrawal::Cancelled });
        }
    }

    /// Handles a change of this host that is part of a table that was replaced as a whole.
    pub(crate) fn absorbed(&mut self, ticket: Ticket, revision: Revision) {
        let taken = self.cluster.as_mut().and_then(|it| it.in_flight.take(ticket));
        let Some(Proposed { then, abandoned, since }) = taken else { return };
        let mut applied = Applied { revision, outcomes: Vec::new() };
        let (id, step) = match then {
            Completion::Renew(renewing) if !abandoned => {
                applied.outcomes = renewing.unseen(&self.ledger.table);
                (renewing.id, self.renewed(&renewing, &applied))
            }
            Completion::Ask(newcomer) if !abandoned => {
                (newcomer.conn, self.find_absorbed(newcomer.conn, RequestId(revision.0)))
            }
            Completion::Confirm { id, request } if !abandoned => (id, self.confirmed(request)),
            // The table is the same whether the change had an effect or found nothing to do, so the
            // result is unknown.
            Completion::Release(_) | Completion::Resize(_) if !abandoned => {
                let Some(id) = then.conn() else { return };
                (id, Err(done_unseen()))
            }
            then => return self.came_back(Proposed { then, abandoned, since }, applied, &[]),
        };
        self.carry_out(id, step);
    }

    fn find_absorbed(&mut self, id: ConnId, request: RequestId) -> Result<Step, Failure> {
        let table = &self.ledger.table;
        let mut takes_progress = false;
        if let Some(waiter) = table.waiter(request) {
            self.waiters.add(waiter, table.session(waiter.frame));
            takes_progress = true;
        } else if let Some(hold) = table.hold_of(request) {
            self.waiters.add_granted(hold, table.session(hold.frame), id);
            self.waiters.queue_grant(granted(table, hold));
        } else {
            return Err(ended_unseen());
        }
        Ok(Step::Wait(self.wait_for_grant(id, request, takes_progress)))
    }

    /// Handles a change that never reached the log.
    pub(crate) fn dropped(&mut self, ticket: Ticket) {
        let proposed = self.cluster.as_mut().and_then(|it| it.in_flight.take(ticket));
        if let Some(Proposed { then, abandoned, .. }) = proposed
            && !abandoned
        {
            self.without_membership(then);
        }
    }

    /// Handles a change that cannot be proposed because its subject is lost. A request is proposed
    /// again once this host is a member; any other call fails.
    fn without_membership(&mut self, then: Completion) {
        let Some(id) = then.conn() else { return };
        let step = match then {
            Completion::Ask(newcomer) => self.wait_for_membership(newcomer).map(Step::Wait),
            _ => Err(self.not_a_member()),
        };
        self.carry_out(id, step);
    }
}

/// The failure for a client whose change is in the log, but whose result this host did not see.
fn done_unseen() -> Failure {
    let message = "the change reached the engine, but the daemon could not follow its result";
    Failure::new(ErrorName::EngineAway, message).hint("`canal status` shows the current state")
}
