//! Describes a deadlock to the client whose request was chosen to end it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::server::Server;
use crate::view::conflict::conflict;
use crate::view::held_item;
use crate::waiters::waiting::Asked;
use crate::wording::refusal;
use crate::wording::text::{pid_of, time};
use canal_core::{
    By, CycleStep, FrameId, Item, Key, Mode, Refusal, Request, RequestId, UnixMillis,
};
use canal_protocol::{BlockerInfo, CycleStepInfo, Failure, PartyInfo};

impl Server {
    /// The failure of a request that was chosen to end a deadlock, as a user may see it. `refused`
    /// is that request: the table no longer contains it.
    pub(crate) fn deadlock(&self, viewer: u32, cycle: &[CycleStep], refused: &Asked) -> Failure {
        let Some((first, last)) = cycle.first().zip(cycle.last()) else {
            return refusal::late_refusal(&Refusal::Duplicate, None, None);
        };
        // The frame of the first request may no longer exist. The last step waits for a frame of
        // the same session, and that frame exists.
        let session = self.ledger.table.session(last.by.frame());
        let teller = Teller { server: self, viewer, refused, request: first.request, session };
        let steps: Box<[_]> = cycle.iter().map(|step| teller.step(step)).collect();
        let sessions: BTreeSet<_> = steps.iter().map(|step| &step.waiter.session).collect();
        let processes: BTreeSet<_> = cycle.iter().map(|step| step.frame).collect();
        let mut failure = refusal::deadlock(&first.key, sessions.len(), processes.len());
        failure.cycle = steps;
        failure
    }
}

/// Builds the description of a deadlock.
struct Teller<'a> {
    server: &'a Server,
    viewer: u32,
    refused: &'a Asked,
    /// The refused request.
    request: RequestId,
    /// Its session.
    session: FrameId,
}

impl Teller<'_> {
    fn step(&self, step: &CycleStep) -> CycleStepInfo {
        let asked = self.asked(step.request);
        let mode =
            asked.as_ref().and_then(|asked| Some(asked.request.items.get(step.item)?.ask.mode()));
        let mode = mode.unwrap_or(Mode::Counted);
        CycleStepInfo {
            waiter: self.party(asked.as_ref(), step.frame),
            key: step.key.to_string(),
            mode,
            blocker: self.blocker(step.by, &step.key, mode),
            node: None,
        }
    }

    /// The request, whether it still waits, was granted, or was refused in this turn.
    fn asked(&self, request: RequestId) -> Option<Asked> {
        if request == self.request {
            return Some(Asked { session: self.session, ..self.refused.clone() });
        }
        if let Some(waiter) = self.server.waiters.get(request) {
            return Some(waiter.asked.clone());
        }
        let table = &self.server.ledger.table;
        let of = |request: &Arc<Request>, frame, since| {
            let session = table.session(frame);
            Asked { request: request.clone(), session, since }
        };
        if let Some(waiter) = table.waiter(request) {
            return Some(of(&waiter.request, waiter.frame, waiter.since));
        }
        table.hold_of(request).map(|hold| of(&hold.asked, hold.frame, hold.asked_at))
    }

    fn party(&self, asked: Option<&Asked>, frame: FrameId) -> PartyInfo {
        let shown = self.server.shown(self.viewer);
        let table = &self.server.ledger.table;
        if let Some(asked) = asked {
            return PartyInfo {
                pid: pid_of(&asked.request.owner),
                uid: asked.request.uid,
                command: shown.command(asked.request.uid, &asked.request.command.0),
                session: format!("s{}", asked.session),
                lease: asked.request.ttl_ms.is_some(),
                run: asked.request.over_nodes.as_deref().map(|over| over.run),
            };
        }
        let state = table.frame(frame);
        let uid = state.map_or(0, |state| state.uid);
        let hold = table.holds_in(frame).next();
        PartyInfo {
            pid: state.map_or(0, |state| pid_of(&state.owner)),
            uid,
            command: hold.and_then(|hold| shown.command(uid, &hold.asked.command.0)),
            session: shown.session(frame),
            lease: state.is_some_and(|state| state.lease.is_some()),
            run: hold.and_then(|hold| Some(hold.asked.over_nodes.as_deref()?.run)),
        }
    }

    fn blocker(&self, by: By, key: &Key, mode: Mode) -> BlockerInfo {
        let nothing = (key.clone(), mode, UnixMillis(0));
        let (party, (key, mode, since), holds) = match by {
            By::Hold(token, frame) => {
                let hold = self.server.ledger.table.hold(token);
                let held = hold.and_then(|hold| {
                    let item = held_item(&hold.items, key, mode)?;
                    Some((item.key.clone(), item.mode, hold.since))
                });
                let asked = hold.map(|hold| {
                    let session = self.server.ledger.table.session(hold.frame);
                    Asked { request: hold.asked.clone(), session, since: hold.asked_at }
                });
                (self.party(asked.as_ref(), frame), held.unwrap_or(nothing), true)
            }
            By::Waiter(request, frame) => {
                let asked = self.asked(request);
                let wanted = asked.as_ref().and_then(|asked| {
                    let wanted = wanted_item(&asked.request.items, key, mode)?;
                    Some((wanted.key.clone(), wanted.ask.mode(), asked.since))
                });
                (self.party(asked.as_ref(), frame), wanted.unwrap_or(nothing), false)
            }
        };
        BlockerInfo { party, key: key.to_string(), mode, holds, since: time(since) }
    }
}

/// The item of another waiter that competes with a request for a key. Prefers an item of the key
/// itself.
pub(super) fn wanted_item<'a>(items: &'a [Item], key: &Key, mode: Mode) -> Option<&'a Item> {
    let competing = || items.iter().filter(|it| conflict((key, mode), (&it.key, it.ask.mode())));
    let of_the_key = || items.iter().find(|other| other.key == *key);
    competing().find(|it| it.key == *key).or_else(|| competing().next()).or_else(of_the_key)
}
