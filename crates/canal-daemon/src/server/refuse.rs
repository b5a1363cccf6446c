//! Refuses requests, or defers them while the process of a holder is exiting.
//!
//! Invariant: a deferred request is proposed again, and answered, when its deferral ends.

use std::sync::Arc;

use crate::calls::call::ConnId;
use crate::calls::in_flight::Completion;
use crate::limits::{EXITING_TIME, PROCESSES_LOOKED_AT_MAX};
use crate::net::call_state::{CallState, PendingAcquire};
use crate::processes::owner_identity::NOBODY;
use crate::server::Server;
use crate::server::step::{Result, Step};
use crate::waiters::waiting::Asked;
use crate::wording::{self, Use, pid_of, too_many_wait};
use canal_core::{FrameId, Key, OwnSlots, Refusal, Request, RequestId, UnixMillis};
use canal_protocol::{ErrorName, Failure, SizeNote};
use canal_sys::clock;
use canal_sys::process::{RunState, run_state};

impl Server {
    /// Handles a request that the table refused: repeats it, defers it, or fails it.
    pub(crate) fn refuse(
        &mut self,
        id: ConnId,
        mut newcomer: PendingAcquire,
        why: &Refusal,
    ) -> Result {
        if matches!(why, Refusal::Full { .. })
            && let Some(ahead) = self.decide.table().first_ahead_of(&newcomer.request)
            && self.suspend_ahead(ahead, Completion::Nothing)
        {
            self.observe.history.take_back(newcomer.request.tag);
            return Ok(self.repeat(newcomer));
        }
        let now = clock::now();
        let until = newcomer.deferred_until.unwrap_or(now + EXITING_TIME);
        if let Refusal::Full { item } = why
            && until > now
            && self.somebody_is_leaving(&newcomer.request, *item)
        {
            tracing::debug!("a request is waiting for a holder that is about to end");
            newcomer.deferred_until = Some(until);
            self.observe.history.take_back(newcomer.request.tag);
            return Ok(Step::Wait(CallState::Deferred(newcomer)));
        }
        let mut failure = self.refusal(id, &newcomer, why);
        if let Refusal::TooLarge { item, .. } = why
            && let Some(conn) = self.conns.peek(id)
            && let Some(item) = newcomer.request.items.get(*item)
            && let Some(text) = count_in_text_of(&conn.asked.key_notes, &item.key)
        {
            failure = failure.hint(wording::count_in_text(text));
        }
        let over = newcomer.request.over_nodes.as_deref();
        if failure.name == ErrorName::NodeListDiffers && over.is_some_and(|over| over.spare) {
            self.leases.are_apart(&failure.message);
        }
        // A client gets each note once. A question gets none, because its client may ask for
        // nothing else.
        if failure.name == ErrorName::Refused && !newcomer.is_question {
            let notes = self.told_sizes.notes(self.decide.table(), &newcomer.request, None);
            failure.add_notes(notes);
        }
        Err(failure)
    }

    fn refusal(&self, id: ConnId, newcomer: &PendingAcquire, why: &Refusal) -> Failure {
        let request = &newcomer.request;
        let would_wait = matches!(why, Refusal::Full { .. } | Refusal::Paused { .. });
        if let (true, Some(most)) = (would_wait, newcomer.crowd) {
            return too_many_wait(most, request.uid);
        }
        let peer = self.conns.peek(id).map(|conn| conn.peer);
        let viewer = peer.map_or(NOBODY, |peer| peer.uid);
        match (why, peer) {
            (Refusal::Superseded { by }, _) => return self.superseded_failure(viewer, *by),
            (Refusal::CannotEnd { token }, Some(peer)) => {
                return self.cannot_supersede(peer, *token);
            }
            _ => {}
        }
        if let Refusal::Deadlock { cycle } = why {
            let session = cycle.first().map_or(FrameId(0), |step| step.frame);
            let since = UnixMillis(clock::unix_ms());
            let asked = Asked { request: request.clone(), session, since };
            return self.deadlock(viewer, cycle, &asked);
        }
        let Some(item) = wording::item_of(why).and_then(|at| request.items.get(at)) else {
            return wording::refusal(why, request, None);
        };
        let shown = self.shown(viewer);
        let at = wording::item_of(why).unwrap_or(0);
        let table = self.decide.table();
        let use_of = Use {
            slots: table.use_for(request, at),
            stored: table.stored(&item.key),
            conflict: shown.conflict(request, at),
        };
        let mut failure = wording::refusal(why, request, Some(&use_of));
        if failure.name == ErrorName::Refused {
            // Count the slots of the request's own session: its holds are listed, too.
            failure.holders = shown.holders(request, at, OwnSlots::Count).into();
        }
        failure
    }

    /// The error for a client whose request a newer one supersedes.
    pub(crate) fn superseded_failure(&self, viewer: u32, by: RequestId) -> Failure {
        let by = self.decide.table().request(by).map(Arc::as_ref);
        let command = by.and_then(|by| self.shown(viewer).command(by.uid, &by.command.0));
        wording::superseded_by(by, command.as_deref())
    }

    /// The error for a waiter whose time is over.
    pub(crate) fn timeout_failure(&mut self, request: RequestId, viewer: u32) -> Failure {
        let mut failure = self.timeout_reason(request, viewer);
        let table = self.decide.table();
        if let Some(waiter) = table.waiter(request) {
            failure.add_notes(self.told_sizes.notes(table, &waiter.request, None));
        }
        failure
    }

    fn timeout_reason(&self, request: RequestId, viewer: u32) -> Failure {
        let shown = self.shown(viewer);
        let Some(why) = shown.why(request) else {
            let mut failure = Failure::new(ErrorName::Refused, "the wait timed out");
            failure.reason = Some("timeout".into());
            return failure;
        };
        if why.is_paused {
            return wording::timeout_while_paused(&why.key);
        }
        let mut failure = wording::timeout(why.key.as_str(), &why.clause);
        if why.held.is_some()
            && let Some(waiter) = self.decide.table().waiter(request)
        {
            failure.holders = shown.holders(&waiter.request, why.item, OwnSlots::LeftOut).into();
        }
        failure
    }

    /// Whether the process of a holder is exiting. It may already have closed its output or its
    /// connection, and the kernel is about to report its end.
    fn somebody_is_leaving(&self, request: &Request, item: usize) -> bool {
        let table = self.decide.table();
        let in_the_way =
            table.blocking_holds(request, item, OwnSlots::Count, PROCESSES_LOOKED_AT_MAX);
        in_the_way
            .into_iter()
            .filter_map(|token| table.hold(token))
            .filter(|hold| hold.asked.host == self.decide.host())
            .any(|hold| run_state(pid_of(&hold.asked.owner)) == RunState::Exiting)
    }
}

/// The text of `--key` that was read as a count for a key, not as a size.
fn count_in_text_of<'a>(notes: &'a [SizeNote], key: &Key) -> Option<&'a str> {
    let note = notes.iter().find(|note| note.key == key.as_str())?;
    note.read.as_deref().filter(|_| note.stated.starts_with(':'))
}
