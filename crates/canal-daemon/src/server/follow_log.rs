//! Follows the log: applies each entry that it returns, notes its outcomes, completes the calls
//! that proposed it, and sends the grants that follow. The embedded journal returns what this
//! daemon proposed; an engine returns the changes of all hosts, and other events.
//!
//! Invariant: each entry is applied to the table that the previous one left. The consequences of a
//! change are reported and carried out only after that. Clients get no message about changes that
//! concern only the requests of other hosts.

use std::sync::Arc;

use crate::calls::call::ConnId;
use crate::calls::in_flight::{Applied, Completion, Proposed};
use crate::cluster::end_commands::ToEnd;
use crate::history::recorder::Cause;
use crate::membership::{Event, Ticket};
use crate::net::call_state::{CallState, PendingCall, Subject};
use crate::server::Server;
use crate::server::call_step::{Result, ended_unseen};
use crate::store::table_and_log::NO_HOST;
use crate::waiters::Open;
use crate::wording::{given_up, owner_gone};
use canal_core::{Change, Entry, HoldState, Outcome, RequestId, Revision};
use canal_protocol::{ErrorName, Failure};
use canal_sys::clock;
use canal_sys::peer::Credentials;

impl Server {
    /// Carries out what the log returns: the changes that this daemon proposed to the embedded
    /// journal and those that follow from them, or the events of an engine.
    ///
    /// # Errors
    /// The table cannot follow the log. The daemon then has to end.
    pub(crate) fn follow(&mut self) -> anyhow::Result<()> {
        while let Some(event) = self.decide.next_event() {
            let recovered = self.decide.table().recovery().is_some();
            match event {
                Event::Entry { revision, entry, ticket } => {
                    self.follow_entry(revision, &entry, ticket);
                }
                Event::Restore(snapshot) => {
                    self.decide.replace_table(&snapshot)?;
                    self.due.changed = true;
                    if self.decide.host() != NO_HOST {
                        self.catch_up();
                    }
                    if self.decide.is_member() {
                        self.ask_for_those_waiting();
                    }
                }
                // The change is part of a table that was replaced as a whole.
                Event::Absorbed { ticket, revision } => {
                    if let Some(proposed) = self.decide.in_flight.take(ticket) {
                        let applied = Applied { revision, outcomes: Vec::new() };
                        self.came_back(ticket, proposed, applied, None);
                    }
                }
                // The change never reached the log.
                Event::Dropped { ticket } => {
                    if let Some(Proposed { then: Completion::Call(id, _), .. }) =
                        self.decide.in_flight.take(ticket)
                        && let Some(call) = self.conns.take_awaiting(id, ticket)
                    {
                        let step = self.without_membership(id, call);
                        self.carry_out(id, step);
                    }
                }
                Event::Clear => self.end_commands(ToEnd::All),
                Event::Joined { host, adopted } => self.joined(host, adopted),
                Event::Lost { host, why } => self.lost(host, &why),
                Event::SnapshotWanted(chain) => self.decide.store_snapshot(*chain),
                Event::Present => self.resume_put_off(),
                event => {
                    self.decide.note_engine(event)?;
                    self.due.changed = true;
                }
            }
            self.follow_recovery(recovered);
        }
        Ok(())
    }

    /// Applies the next entry of the log. `ticket` is set if this host proposed the entry.
    fn follow_entry(&mut self, revision: Revision, entry: &Entry, ticket: Option<Ticket>) {
        let proposed = ticket.and_then(|ticket| Some((ticket, self.decide.take_entry(ticket)?)));
        let by = match &proposed {
            Some((_, Proposed { then: Completion::Call(_, peer), .. })) => Some(peer),
            _ => None,
        };
        // After the release, the table no longer has them.
        let before = match &entry.change {
            Change::Release(giving) if by.is_some() => self.decide.table().holds_of(giving),
            _ => Vec::new(),
        };
        let applied = self.apply(revision, entry, by);
        if let Some((ticket, proposed)) = proposed {
            self.came_back(ticket, proposed, applied, Some(&before));
        }
        if let Change::Suspend { request } = entry.change
            && !self.waiters.stopped.contains_key(&request)
        {
            self.tell_after_all(request);
        }
        if matches!(entry.change, Change::HostGone { .. }) && self.decide.is_member() {
            // Requests may have waited for the end of an earlier incarnation.
            self.ask_for_those_waiting();
        }
    }

    /// Applies an entry, and notes its outcomes. Ends the calls of waiters that it refused or
    /// withdrew. `by`: the client that asked this daemon for the change.
    fn apply(&mut self, revision: Revision, entry: &Entry, by: Option<&Credentials>) -> Applied {
        let applied = self.decide.ledger_mut().apply_entry(revision, entry);
        self.observe.hooks.stirred |= !applied.outcomes.is_empty();
        let (table, host) = (self.decide.table(), self.decide.host());
        self.observe.history.take_in(&entry.change, by, &applied, table, host);
        // A confirmation has no outcome, but its grant counts from here.
        self.due.changed |=
            !applied.outcomes.is_empty() || matches!(entry.change, Change::Confirm { .. });
        // When one of our incarnations is gone, its holds have ended, but their processes released
        // nothing and may still run. The daemon finds them in its own record before it joins.
        if self.decide.is_member() || !matches!(entry.change, Change::HostGone { .. }) {
            let owner_ended = matches!(entry.change, Change::End { .. });
            let answered = by.map(|_| RequestId(revision.0));
            for outcome in &applied.outcomes {
                if let Some((id, failure)) = self.note(outcome, owner_ended, answered) {
                    self.carry_out(id, Err(failure));
                }
            }
        }
        applied
    }

    /// Completes a change of this host that is in the table. `before`: the holds that it may have
    /// released; `None` if the table was replaced as a whole, so that the outcomes are unknown.
    fn came_back(
        &mut self,
        ticket: Ticket,
        proposed: Proposed,
        applied: Applied,
        before: Option<&[Arc<HoldState>]>,
    ) {
        match (proposed.then, proposed.change) {
            (Completion::Nothing, Change::End { frame }) => self.ended(frame),
            (Completion::Nothing, _) => {}
            (Completion::CheckAhead { behind, left }, _) => self.check_ahead_of(behind, left),
            (Completion::JobSlot { build }, _) => self.take_slot(build),
            (Completion::JobToken { build }, _) => {
                self.token_decided(build, RequestId(applied.revision.0));
            }
            (Completion::Call(id, peer), change) => {
                if let Some(call) = self.conns.take_awaiting(id, ticket) {
                    let step = self.step_after(id, peer, call, applied, before);
                    self.carry_out(id, step);
                } else if let Change::Request(asked) = change {
                    // Its client has left or was sent a failure, so no call waits for it.
                    let request = RequestId(applied.revision.0);
                    let _ = self.waiters.remove(request);
                    if self.decide.table().tagged(asked.tag) == Some(request) {
                        self.propose(Change::Withdraw { request });
                    }
                }
            }
        }
    }

    /// The next step of a call whose change is in the table. `before` as for [`Self::came_back`].
    fn step_after(
        &mut self,
        id: ConnId,
        peer: Credentials,
        call: PendingCall,
        mut applied: Applied,
        before: Option<&[Arc<HoldState>]>,
    ) -> Result {
        match (call, before) {
            (PendingCall::Ask(newcomer), Some(_)) => self.asked(id, newcomer, applied),
            (PendingCall::Ask(_), None) => {
                let (table, request) = (self.decide.table(), RequestId(applied.revision.0));
                self.waiters.add(request, Open::of(table, request).ok_or_else(ended_unseen)?);
                if let Some(hold) = table.hold_of(request) {
                    self.waiters.queue_grant_again(table, hold);
                }
                Ok(self.wait_for_grant(id, request))
            }
            (PendingCall::Renew(renewing), seen) => {
                if seen.is_none() {
                    applied.outcomes = renewing.unseen(self.decide.table());
                }
                self.renewed(peer, &renewing, &applied)
            }
            (PendingCall::Release(giving), Some(before)) => {
                self.given_back(peer, &giving, before, &applied)
            }
            (PendingCall::Resize(key), Some(_)) => self.resized(&key, &applied),
            (PendingCall::Prioritize(request, before, priority), Some(_)) => {
                self.prioritized(request, before, priority)
            }
            (PendingCall::Question(newcomer), _) => self.question(id, newcomer),
            (PendingCall::Confirm(request), _) => self.confirmed(request),
            (PendingCall::ConfirmAt(request), _) => self.confirmed_at(request, &applied),
            // The table is the same whether the change had an effect or found nothing to do, so the
            // result is unknown.
            (
                PendingCall::Release(_) | PendingCall::Resize(_) | PendingCall::Prioritize(..),
                None,
            ) => {
                let message =
                    "the change reached the engine, but the daemon could not follow its result";
                Err(Failure::new(ErrorName::EngineAway, message)
                    .hint("run `canal status` to see the current state"))
            }
        }
    }

    /// Looks up what the skipped entries decided for this host, after the table was replaced as a
    /// whole.
    fn catch_up(&mut self) {
        let requests: Vec<RequestId> = self.waiters.iter().map(|(request, _)| request).collect();
        for request in requests {
            let table = self.decide.table();
            if table.waiter(request).is_some() {
                continue;
            }
            if let Some(hold) = table.hold_of(request) {
                self.waiters.queue_grant_again(table, hold);
            } else if let Some(conn) = self.end_waiter(request) {
                self.carry_out(conn, Err(ended_unseen()));
            }
        }
        let table = self.decide.table();
        self.waiters.stopped.retain(|request, _| table.waiter(*request).is_some());
        self.decide.ended_tokens().into_iter().for_each(|token| self.hold_ended(token));
        for frame in self.owners.frames() {
            if self.decide.table().frame(frame).is_none() {
                self.owners.forget(frame);
            }
        }
        self.leases.follow(self.decide.table(), self.decide.host());
        self.observe.follow(self.decide.ledger());
    }

    /// Notes an outcome. The call that proposed the change handles its other consequences, such as
    /// a grant of the request that it made, `answered`. Returns another call that the outcome ends,
    /// and the failure of that call.
    ///
    /// Invariant: a client that waits for a decision receives it. No client receives a decision
    /// about the request of another host.
    pub(crate) fn note(
        &mut self,
        outcome: &Outcome,
        owner_ended: bool,
        answered: Option<RequestId>,
    ) -> Option<(ConnId, Failure)> {
        let (table, host) = (self.decide.table(), self.decide.host());
        let is_ours = |hold: &HoldState| hold.asked.host == host;
        match outcome {
            Outcome::Queued { request, .. } => {
                let waiter = table.waiter(*request).filter(|waiter| waiter.request.host == host);
                if let Some(waiter) = waiter {
                    self.waiters.add(*request, Open::of_waiter(table, waiter));
                }
            }
            Outcome::Granted(granted)
                if self.waiters.get(granted.request).is_some()
                    || table.hold(granted.token).is_some_and(is_ours) =>
            {
                self.leases.begin(table, host, granted.frame);
                if answered != Some(granted.request) {
                    self.waiters.to_tell.push_back(granted.clone());
                }
            }
            Outcome::Requeued { request, token } => {
                if let Some(waiter) = table.waiter(*request) {
                    self.leases.forget(waiter.frame);
                }
                self.waiters.to_tell.retain(|granted| granted.token != *token);
                let (request, token) = (request.0, token.0);
                tracing::debug!(request, token, "took back a grant before its client got it");
            }
            Outcome::Refused { request, why } => {
                let waiter = self.waiters.ended(*request)?;
                let conn = self.conns.waiter(*request)?;
                let viewer = self.conns.peek(conn)?.peer.uid;
                return Some((conn, self.refusal(viewer, &waiter.open, why)));
            }
            Outcome::Withdrawn { request } => {
                self.waiters.ended(*request)?;
                let conn = self.conns.waiter(*request)?;
                return Some((conn, if owner_ended { owner_gone() } else { given_up() }));
            }
            Outcome::Released { token, frame, whole, .. } => {
                if *whole {
                    self.hold_ended(*token);
                    self.leases.forget(*frame);
                }
                tracing::debug!(token = token.0, session = %format_args!("s{frame}"), "released");
            }
            Outcome::FrameGone { frame } => {
                self.leases.reported.remove(frame);
                self.owners.rest(*frame);
            }
            Outcome::ConfirmedAt { token, .. } => {
                if let Some(hold) = table.hold(*token) {
                    self.leases.begin(table, host, hold.frame);
                }
            }
            Outcome::Renewed { frame, .. } | Outcome::LeaseMoved { frame, .. } => {
                self.leases.begin(table, host, *frame);
            }
            Outcome::Prioritized { request, .. } => {
                if let Some(changed) = table.waiter(*request)
                    && let Some(waiter) = self.waiters.get_mut(*request)
                {
                    waiter.open.asked = Arc::clone(&changed.request);
                }
            }
            Outcome::NotHeld
            | Outcome::LeaseGone
            | Outcome::NotConfirmed { .. }
            | Outcome::Granted(_)
            | Outcome::Barrier { .. }
            | Outcome::ResizeRefused { .. }
            | Outcome::ResizeRefusedOverNodes
            | Outcome::Stored { .. } => {}
        }
        None
    }

    /// Follows the log, checks all waiters that were granted something, and sends their grants.
    /// Repeats this until nothing follows from it.
    ///
    /// # Errors
    /// As for [`Self::follow`].
    pub(crate) fn settle(&mut self) -> anyhow::Result<()> {
        loop {
            self.follow()?;
            // A grant made while this host cannot renew is sent once it can renew again, or never.
            if !self.waiters.to_tell.is_empty() && self.decide.may_grant() {
                while let Some(granted) = self.waiters.to_tell.pop_front() {
                    #[cfg(test)]
                    if crate::sim::is_broken(crate::sim::Rule::GrantsAreTold)
                        && granted.token.0 % 4 == 0
                    {
                        continue;
                    }
                    if let Some((id, step)) = self.offer(granted) {
                        self.carry_out(id, step);
                    }
                    self.follow()?;
                }
            }
            let unsynced = self.conns.end_waits(Subject::Disk, |_| true);
            if unsynced.is_empty() {
                return Ok(());
            }
            // All leases that wait for this become durable together.
            let stored = self.decide.ledger_mut().keep_leases();
            for (id, state) in unsynced {
                let CallState::Stores(request, granted) = state else { continue };
                let step = self.step_of_lease(id, request, granted, &stored);
                self.carry_out(id, step);
            }
        }
    }

    /// Ends the waits whose time is over.
    ///
    /// # Errors
    /// As for [`Self::follow`].
    pub(crate) fn end_waits(&mut self) -> anyhow::Result<()> {
        if self.waiters.next_end().is_none() {
            return Ok(());
        }
        let now = clock::boottime_ms();
        while let Some(request) = self.waiters.over(now) {
            let id = self.end_waiter(request);
            self.observe.history.expect_end(request, Cause::TimedOut);
            if let Some(id) = id
                && let Some(viewer) = self.conns.peek(id).map(|conn| conn.peer.uid)
            {
                let failure = self.timeout_failure(request, viewer);
                self.carry_out(id, Err(failure));
            }
            // The request may be granted before its withdrawal is in the log.
            self.propose(Change::Withdraw { request });
            // This may grant another request whose wait is over now.
            self.settle()?;
        }
        Ok(())
    }
}
