//! Refuses requests, and asks again where a refusal may be premature.

use std::sync::Arc;
use std::time::Duration;

use crate::calls::call::ConnId;
use crate::calls::in_flight::Completion;
use crate::net::call_state::{CallState, PendingAcquire};
use crate::processes::identify_owner::{NOBODY, PROCESSES_LOOKED_AT_MAX};
use crate::server::Server;
use crate::server::call_step::{Result, Step};
use crate::server::requests::kill::past;
use crate::view::visible_table::is_held;
use crate::waiters::Open;
use crate::wording::{self, Use, pid_of, refused, too_many_wait};
use canal_core::{OwnSlots, Reason, Refusal, Request, RequestId};
use canal_protocol::{ErrorName, Failure};
use canal_sys::clock;
use canal_sys::process::{RunState, run_state};

/// How long a request with `-n` waits for a holder whose process is exiting.
const EXITING_TIME: Duration = Duration::from_millis(100);

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
            return Ok(self.ask(newcomer));
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
        let mut failure = self.early_refusal(id, &newcomer, why);
        // The text of `--key` may have been read as a count for a key, not as a size.
        if let Refusal::TooLarge { item, .. } = why
            && let Some(conn) = self.conns.peek(id)
            && let Some(item) = newcomer.request.items.get(*item)
            && let Some(note) = conn.asked.key_notes.iter().find(|it| it.key == item.key.as_str())
            && let Some(text) = note.read.as_deref().filter(|_| note.stated.starts_with(':'))
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

    /// The failure for a request that is refused before it waits.
    fn early_refusal(&self, id: ConnId, newcomer: &PendingAcquire, why: &Refusal) -> Failure {
        let request = &newcomer.request;
        let would_wait = matches!(why, Refusal::Full { .. } | Refusal::Paused { .. });
        if let (true, Some(most)) = (would_wait, newcomer.crowd) {
            return too_many_wait(most, request.uid);
        }
        let peer = self.conns.peek(id).map(|conn| conn.peer);
        if let (Refusal::CannotEnd { token }, Some(peer)) = (why, peer) {
            let hold = self.target_named(Some(token.0), None).ok();
            return match hold.map(|hold| self.killable(peer, &hold, |_| ())) {
                Some(Err(failure)) => failure,
                // It has changed since.
                _ => past("the holder has changed").hint("run the command again"),
            };
        }
        let viewer = peer.map_or(NOBODY, |peer| peer.uid);
        let refused = Open::refused_at_once(self.decide.table(), self.decide.host(), request);
        let mut failure = self.refusal(viewer, &refused, why);
        if failure.name == ErrorName::Refused
            && !matches!(why, Refusal::Deadlock { .. })
            && let Some(at) = wording::item_of(why)
        {
            // Count the slots of the request's own session: its holds are listed, too.
            failure.holders = self.shown(viewer).holders(request, at, OwnSlots::Count).into();
        }
        failure
    }

    /// The failure for a request that the table refused, as a user may see it.
    pub(crate) fn refusal(&self, viewer: u32, open: &Open, why: &Refusal) -> Failure {
        let (shown, table) = (self.shown(viewer), self.decide.table());
        let request = &*open.asked;
        match why {
            Refusal::Deadlock { cycle } => self.deadlock(viewer, cycle, open),
            Refusal::Superseded { by } => {
                let by = table.request(*by).map(Arc::as_ref);
                let command = by.and_then(|by| shown.command(by.uid, &by.command.0));
                wording::superseded_by(by, command.as_deref())
            }
            _ => {
                let found = wording::item_of(why).and_then(|at| Some((at, request.items.get(at)?)));
                let use_of = found.map(|(at, item)| Use {
                    slots: table.use_for(request, at),
                    stored: table.settings(&item.key).view,
                    conflict: shown.conflict(request, at),
                });
                wording::refusal(why, request, use_of.as_ref())
            }
        }
    }

    /// The error for a waiter whose time is over.
    pub(crate) fn timeout_failure(&mut self, request: RequestId, viewer: u32) -> Failure {
        let shown = self.shown(viewer);
        let mut failure = match shown.why(request) {
            None => refused("timeout", "the wait timed out"),
            Some((why, ..)) if why.reason == Reason::Paused => {
                wording::timeout_while_paused(&why.key)
            }
            Some((why, _, clause)) => {
                let mut failure = wording::timeout(why.key.as_str(), &clause);
                let waiter = shown.table.waiter(request);
                if let Some(waiter) = waiter.filter(|_| is_held(&why.reason)) {
                    let holders = shown.holders(&waiter.request, why.item, OwnSlots::LeftOut);
                    failure.holders = holders.into();
                }
                failure
            }
        };
        let table = self.decide.table();
        if let Some(waiter) = table.waiter(request) {
            failure.add_notes(self.told_sizes.notes(table, &waiter.request, None));
        }
        failure
    }

    /// Whether the process of a holder is exiting. It may already have closed its output or its
    /// connection, and the kernel is about to report its end.
    fn somebody_is_leaving(&self, request: &Request, item: usize) -> bool {
        let table = self.decide.table();
        let in_the_way =
            table.blocking_holds(request, item, OwnSlots::Count, PROCESSES_LOOKED_AT_MAX);
        let asked = in_the_way.into_iter().filter_map(|token| Some(&table.hold(token)?.asked));
        let here = self.decide.host();
        let mut own = asked.filter(|asked| asked.host == here);
        own.any(|asked| run_state(pid_of(&asked.owner)) == RunState::Exiting)
    }
}
