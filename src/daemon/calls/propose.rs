//! Changes on their way into the log, and what follows when they are in it.
//!
//! With the embedded journal a change is applied as soon as it is proposed. An engine says later
//! where it came to lie among those of all hosts; until then it is [under way](crate::daemon::calls::in_flight).
//!
//! Invariant: what follows from a change is told and done only after it was applied at its place
//! in the log.

use std::sync::Arc;

use crate::core::{Change, HoldState, RequestId, Revision, Withdrawal};
use crate::daemon::calls::completion::{Applied, Completion};
use crate::daemon::calls::in_flight::{Awaiting, LogWait, Proposed};
use crate::daemon::calls::pending_acquire::{Patience, PendingAcquire};
use crate::daemon::net::conn_id::ConnId;
use crate::daemon::net::connection::CallState;
use crate::daemon::server::Server;
use crate::daemon::store::ledger::Log;
use crate::host::Ticket;
use crate::sys::clock;

impl Server {
    /// Brings a change into the log. What follows is done when it is applied.
    pub(crate) fn propose(&mut self, change: Change, then: Completion) {
        if let Log::Engine(_) = self.ledger.log {
            return self.propose_to_engine(change, then);
        }
        let before = self.at_stake(&then);
        let applied = self.ledger.apply(change);
        self.take_note(&applied, matches!(then, Completion::End { .. }));
        self.follow_up(applied, then, &before);
    }

    /// The holds that may end by it: afterwards they can be shown no more.
    pub(crate) fn at_stake(&self, then: &Completion) -> Vec<Arc<HoldState>> {
        match then {
            Completion::Release(back) => self.holds_at_stake(&back.giving),
            _ => Vec::new(),
        }
    }

    /// Takes note of what was decided.
    pub(crate) fn take_note(&mut self, applied: &Applied, owner_ended: bool) {
        self.changed |= !applied.outcomes.is_empty();
        for outcome in &applied.outcomes {
            self.note(outcome, owner_ended);
        }
    }

    /// Does what is to be done when a change of ours has been applied.
    pub(crate) fn follow_up(
        &mut self,
        applied: Applied,
        then: Completion,
        before: &[Arc<HoldState>],
    ) {
        let (id, done) = match then {
            Completion::Nothing => return,
            Completion::Ask(newcomer) => return self.asked(newcomer, applied),
            Completion::End { frame } => return self.ended(frame),
            Completion::Release(back) => (back.id, self.given_back(back, before, &applied)),
            Completion::Renew(renewing) => (renewing.id, self.renewed(*renewing, &applied)),
            Completion::Resize(resizing) => (resizing.id, self.resized(*resizing, &applied)),
            Completion::Confirm { id } => (id, self.confirmed(id)),
        };
        if let Err(failure) = done {
            self.fail(id, &failure);
        }
    }

    fn propose_to_engine(&mut self, change: Change, then: Completion) {
        if !self.ledger.is_member() {
            return self.without_membership(then);
        }
        let recovers = self.ledger.table.recovery().is_some();
        if (recovers || self.terminator.are_awaited())
            && let Completion::Ask(newcomer) = then
        {
            return self.ask_when_joined(newcomer);
        }
        if let Change::Withdraw { request, .. } = &change {
            self.in_flight.leaving.insert(*request);
        }
        let patience = match &then {
            Completion::Ask(newcomer) => newcomer.patience(),
            _ => None,
        };
        let is_request = matches!(then, Completion::Ask(_));
        let Some(shared) = self.ledger.engine_mut() else { return };
        let ticket = shared.propose(change);
        if let Some(id) = then.conn() {
            let what =
                if is_request { Awaiting::Request(ticket) } else { Awaiting::Change(ticket) };
            self.wait_for_log(id, what, patience);
        }
        self.in_flight.add(ticket, then);
    }

    /// The call of a connection is not done because of the log: later ones have to wait.
    pub(crate) fn wait_for_log(&mut self, id: ConnId, what: Awaiting, patience: Option<Patience>) {
        let Some(conn) = self.conns.get(id) else { return };
        conn.doing = CallState::InFlight;
        // The peer has been patient since its call began, whatever it waited for first.
        let since = *conn.wordless_since.get_or_insert_with(clock::boottime_ms);
        self.in_flight.pending.insert(id, LogWait { what, since, patience });
    }

    /// A change of ours was applied at its place in the engine's log.
    pub(crate) fn came_back(
        &mut self,
        proposed: Proposed,
        applied: Applied,
        before: &[Arc<HoldState>],
    ) {
        let Proposed { then, abandoned } = proposed;
        if !abandoned {
            if let Some(id) = then.conn() {
                self.done(id);
            }
            return self.follow_up(applied, then, before);
        }
        if let Completion::Ask(newcomer) = then {
            self.give_back_unwanted(&newcomer, applied.revision);
        }
    }

    /// Nobody is there any more who could be told of a request.
    pub(crate) fn give_back_unwanted(&mut self, newcomer: &PendingAcquire, revision: Revision) {
        let request = RequestId(revision.0);
        self.waiters.remove(request);
        self.waiters.drop_grant(request);
        let table = &self.ledger.table;
        if table.tagged(newcomer.request.tag) == Some(request) {
            let why = Withdrawal::Cancelled;
            self.propose(Change::Withdraw { request, why }, Completion::Nothing);
        }
    }

    /// What is to be done about a change that never came into the log.
    pub(crate) fn dropped(&mut self, ticket: Ticket) {
        if let Some(Proposed { then, abandoned }) = self.in_flight.take(ticket)
            && !abandoned
        {
            if let Some(id) = then.conn() {
                self.done(id);
            }
            self.without_membership(then);
        }
    }

    /// Of a change that cannot be proposed, because all that it could be about is lost.
    fn without_membership(&mut self, then: Completion) {
        match then {
            Completion::Ask(newcomer) => self.ask_when_joined(newcomer),
            other => {
                if let Some(id) = other.conn() {
                    let failure = self.not_a_member();
                    self.fail(id, &failure);
                }
            }
        }
    }
}
