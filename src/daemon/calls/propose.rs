//! Changes on their way into the log, and what follows when they are in it.
//!
//! With the embedded journal, a change is applied as soon as it is proposed. An engine reports
//! later at which place among the changes of all hosts it landed; until then the change is [in
//! flight](crate::daemon::calls::in_flight).
//!
//! Invariant: what follows from a change is reported and done only after the change was applied at
//! its place in the log.

use std::sync::Arc;

use crate::core::{Change, HoldState, RequestId, Revision, Withdrawal};
use crate::daemon::calls::completion::{Applied, Completion};
use crate::daemon::calls::in_flight::{Awaiting, LogWait, Proposed};
use crate::daemon::calls::pending_acquire::{Patience, PendingAcquire};
use crate::daemon::net::conn_id::ConnId;
use crate::daemon::net::connection::CallState;
use crate::daemon::server::Server;
use crate::host::Ticket;
use crate::sys::clock;

impl Server {
    /// Brings a change into the log. When it is applied, `then` says what follows.
    pub(crate) fn propose(&mut self, change: Change, then: Completion) {
        if self.cluster.is_some() {
            return self.propose_to_engine(change, then);
        }
        let before = self.at_stake(&then);
        let applied = self.ledger.apply(change);
        self.take_note(&applied, matches!(then, Completion::End { .. }));
        self.follow_up(applied, then, &before);
    }

    /// The holds that a release may end. The table no longer has them afterwards.
    pub(crate) fn at_stake(&self, then: &Completion) -> Vec<Arc<HoldState>> {
        match then {
            Completion::Release(back) => self.holds_at_stake(&back.giving),
            _ => Vec::new(),
        }
    }

    /// Notes every outcome of a change.
    pub(crate) fn take_note(&mut self, applied: &Applied, owner_ended: bool) {
        self.due.changed |= !applied.outcomes.is_empty();
        for outcome in &applied.outcomes {
            self.note(outcome, owner_ended);
        }
    }

    /// Carries out what follows, when a change of this host has been applied.
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
        let Some(cluster) = &mut self.cluster else { return };
        if cluster.must_not_ask(&self.ledger.table)
            && let Completion::Ask(newcomer) = then
        {
            return self.ask_when_joined(newcomer);
        }
        if let Change::Withdraw { request, .. } = &change {
            cluster.in_flight.leaving.insert(*request);
        }
        let patience = match &then {
            Completion::Ask(newcomer) => newcomer.patience(),
            _ => None,
        };
        let is_request = matches!(then, Completion::Ask(_));
        let ticket = cluster.propose(change);
        let id = then.conn();
        cluster.in_flight.add(ticket, then);
        if let Some(id) = id {
            let what =
                if is_request { Awaiting::Request(ticket) } else { Awaiting::Change(ticket) };
            self.wait_for_log(id, what, patience);
        }
    }

    /// Whether a request is being withdrawn in the engine's log, so that its client is told nothing
    /// more.
    pub(crate) fn is_leaving(&self, request: RequestId) -> bool {
        self.cluster.as_ref().is_some_and(|it| it.in_flight.leaving.contains(&request))
    }

    /// Lets the call of a connection wait for the log. Later calls of the connection have to wait,
    /// too.
    pub(crate) fn wait_for_log(&mut self, id: ConnId, what: Awaiting, patience: Option<Patience>) {
        let Some(conn) = self.conns.get(id) else { return };
        conn.doing = CallState::InFlight;
        // The client has waited since its call began, whatever the call waited for first.
        let since = *conn.wordless_since.get_or_insert_with(clock::boottime_ms);
        if let Some(cluster) = &mut self.cluster {
            cluster.in_flight.pending.insert(id, LogWait { what, since, patience });
        }
    }

    /// Handles a change of this host that was applied at its place in the engine's log.
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

    /// Gives back a request if its client left or was told of failure.
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

    /// Handles a change that never came into the log.
    pub(crate) fn dropped(&mut self, ticket: Ticket) {
        let proposed = self.cluster.as_mut().and_then(|it| it.in_flight.take(ticket));
        if let Some(Proposed { then, abandoned }) = proposed
            && !abandoned
        {
            if let Some(id) = then.conn() {
                self.done(id);
            }
            self.without_membership(then);
        }
    }

    /// Handles a change that cannot be proposed, because everything that it could be about is lost.
    /// A request is proposed again when this host is a member; any other call fails.
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
