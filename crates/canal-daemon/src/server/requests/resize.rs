//! Changes the settings of a key and the priority of waiting requests.
//!
//! Invariant: with the embedded journal, a setting is durable before it applies. So no grant
//! depends on a setting that a restart would lose.

use crate::calls::in_flight::Applied;
use crate::calls::items::{self, WITHOUT_MAX};
use crate::config::permissions::Action;
use crate::net::call_state::PendingCall;
use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step};
use crate::store::ledger::setting_bytes;
use crate::wording::{bad, cannot, denied, not_held, used_as};
use canal_core::{Change, Key, Outcome, RequestId, Setting, Table, View, WaiterState};
use canal_protocol::{ErrorName, Failure, Prioritize, Prioritized, Resize, Resized};

impl Server {
    pub(crate) fn resize(&mut self, caller: &Caller, resize: &Resize) -> Result {
        let (key, setting) = items::setting(resize)?;
        self.may(caller.id, Action::Resize, &key)?;
        let mut wanted = self.decide.table().settings(&key).clone();
        let numbers = match &setting {
            Setting::Service { numbers, .. } => numbers.len() + wanted.without.0.len(),
            Setting::View(_) | Setting::Paused(_) => 0,
        };
        self.reserve(setting_bytes(&key, numbers))?;
        wanted.set(&setting);
        if wanted.without.0.len() > WITHOUT_MAX {
            let message = format!("at most {WITHOUT_MAX} of `{key}` can be out of service");
            return Err(bad(message));
        }
        let mut applied = setting.clone();
        if let Setting::View(view) = &mut applied {
            // A key whose stored view is forgotten gets the configured view.
            *view = view.or_else(|| self.effective.config.views.get(&key).copied());
            if let Some(refused) = self.decide.refusal_of_view(&key, *view)
                && let Some(failure) = refusal_of(&key, &refused)
            {
                return Err(failure);
            }
        }
        let what = format!("store the setting of `{key}`");
        let ledger = self.decide.ledger_mut();
        ledger.change_durable(|it| it.set(&key, &setting)).map_err(cannot(&what))?;
        let change = Change::Set { key: key.clone(), setting: applied };
        Ok(Step::Propose(change, PendingCall::Resize(key)))
    }

    /// Answers a setting that was applied to the table, or refused by it.
    pub(crate) fn resized(&self, key: &Key, applied: &Applied) -> Result {
        let table = self.decide.table();
        let settings = table.settings(key);
        let outcome = applied.outcomes.first();
        if let Some(failure) = outcome.and_then(|outcome| refusal_of(key, outcome)) {
            return Err(failure);
        }
        let before =
            if let Some(Outcome::Stored { before }) = outcome { *before } else { settings.view };
        let resized = Resized {
            key: key.to_string(),
            before: before.as_ref().map(View::to_string),
            now: settings.view.as_ref().map(View::to_string),
            paused: settings.paused,
            without: settings.without.0.iter().copied().collect(),
            held: table.held_of(key),
            waiting: table.waiting_for(key) as u64,
        };
        let view = resized.now.as_deref().unwrap_or("none");
        tracing::info!(%key, view, paused = resized.paused, "resized");
        Ok(Step::reply(&resized))
    }
}

/// The failure for a client whose view of a key the table refuses.
fn refusal_of(key: &Key, outcome: &Outcome) -> Option<Failure> {
    let failure = Failure::new(ErrorName::Mismatch, format!("`{key}` {}", barred(outcome)?));
    Some(failure.hint(format!("run `canal status {key}` to see its holders and waiters")))
}

/// The end of a sentence about a key whose view the table refuses: the key is in use with another
/// kind of view, or a majority of nodes grants it.
pub(super) fn barred(outcome: &Outcome) -> Option<&'static str> {
    match outcome {
        Outcome::ResizeRefused { in_use } => Some(used_as(*in_use)),
        Outcome::ResizeRefusedOverNodes => Some(
            "is in use with a majority of nodes, which excludes others only if the lock has one \
             slot",
        ),
        _ => None,
    }
}

/// Changes the priority of waiting requests.
///
/// Invariant: a client may change only its own requests, unless it is root or runs the daemon, and
/// it needs the same permission for a priority above 0 as for a request with one.
impl Server {
    pub(crate) fn prioritize(&mut self, caller: &Caller, asked: &Prioritize) -> Result {
        let peer = caller.peer;
        let session = items::session(&asked.session)?;
        let table = self.decide.table();
        let waiters = table.waiters().filter(|waiter| table.session(waiter.frame) == session);
        let waiters: Vec<&WaiterState> = waiters.collect();
        let Some(first) = waiters.first() else {
            let message = format!("session {} is not waiting", asked.session);
            return Err(not_held(message).hint("run `canal status` to see all waiting requests"));
        };
        let uid = first.request.uid;
        if peer.uid != uid && !self.is_operator(peer.uid) {
            let message = format!("session {} belongs to uid {uid}", asked.session);
            return Err(denied(message)
                .hint("change its priority as that user, as root or as the daemon's user"));
        }
        let highest = || waiters.iter().map(|waiter| first_place(table, waiter)).max();
        let priority = asked.priority.or_else(highest).unwrap_or_default();
        for waiter in &waiters {
            self.may_hold(caller.id, &waiter.request.items, priority)?;
        }
        let pending = PendingCall::Prioritize(first.id, first.request.priority, priority);
        let keys = first.request.items.iter();
        // The entry needs room in the journal that no request has reserved.
        let bytes: Vec<u64> = keys.map(|item| setting_bytes(&item.key, 0)).collect();
        bytes.into_iter().try_for_each(|bytes| self.reserve(bytes))?;
        Ok(Step::Propose(Change::Prioritize { session, priority }, pending))
    }

    /// Answers a change of priority that was applied to the table.
    pub(crate) fn prioritized(&self, request: RequestId, before: i32, priority: i32) -> Result {
        let table = self.decide.table();
        let Some(frame) = table.frame_of_request(request) else {
            return Err(not_held("the request has ended"));
        };
        tracing::info!(session = %format_args!("s{}", table.session(frame)), priority, "prioritized");
        // At the key that blocks it.
        let position = table.why(request).and_then(|why| table.position(request, why.item));
        Ok(Step::reply(&Prioritized {
            session: format!("s{}", table.session(frame)),
            before,
            priority,
            position: position.unwrap_or(0) as u64,
        }))
    }
}

/// The priority with which a waiter goes before all other waiters for its keys: its own if it
/// already does.
fn first_place(table: &Table, waiter: &WaiterState) -> i32 {
    let keys = waiter.request.items.iter().map(|item| &item.key);
    let rivals = keys.flat_map(|key| table.served(key)).filter(|id| *id != waiter.id);
    let ranks = rivals.filter_map(|id| table.waiter(id));
    let needed = ranks.map(|rival| {
        // Of two with the same priority, the earlier one goes first.
        rival.request.priority.saturating_add(i32::from(rival.id < waiter.id))
    });
    needed.chain([waiter.request.priority]).max().unwrap_or_default()
}
