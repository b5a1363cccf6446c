//! Changes the priority of waiting requests.
//!
//! Invariant: a client may change only its own requests, unless it is root or runs the daemon, and
//! it needs the same permission for a priority above 0 as for a request with one.

use crate::calls::completion::{Completion, PendingPriority};
use crate::calls::conn_id::ConnId;
use crate::calls::items;
use crate::server::Server;
use crate::server::dispatch::step::Step;
use crate::store::disk_full::disk_full;
use canal_core::{Change, Key, RequestId, Table, WaiterState};
use canal_protocol::{ErrorName, Failure, Prioritize, Prioritized};
use canal_sys::peer::Credentials;

impl Server {
    pub(crate) fn prioritize(
        &mut self,
        id: ConnId,
        peer: Credentials,
        asked: &Prioritize,
    ) -> Result<Step, Failure> {
        let session = items::session(&asked.session)?;
        let table = &self.ledger.table;
        let waiters = table.waiters().filter(|waiter| table.session(waiter.frame) == session);
        let waiters: Vec<&WaiterState> = waiters.collect();
        let Some(first) = waiters.first() else {
            let message = format!("session {} does not wait", asked.session);
            return Err(Failure::new(ErrorName::NotHeld, message)
                .hint("`canal status` shows all waiting requests"));
        };
        let uid = first.request.uid;
        if peer.uid != uid && !self.is_operator(peer.uid) {
            let message = format!("session {} belongs to uid {uid}", asked.session);
            return Err(Failure::new(ErrorName::Denied, message)
                .hint("only that user, root and the user of the daemon may change its priority"));
        }
        let highest = || waiters.iter().map(|waiter| first_place(table, waiter)).max();
        let priority = asked.priority.or_else(highest).unwrap_or_default();
        for waiter in &waiters {
            self.may_hold(id, &waiter.request.items, priority)?;
        }
        let pending =
            PendingPriority { id, request: first.id, before: first.request.priority, priority };
        let keys: Vec<Key> = first.request.items.iter().map(|item| item.key.clone()).collect();
        for key in &keys {
            // The entry needs room in the journal that no request has reserved.
            self.ledger.admit_setting(key, 0).map_err(|error| disk_full(&error))?;
        }
        let change = Change::Prioritize { session, priority };
        Ok(Step::Propose(change, Completion::Prioritize(Box::new(pending))))
    }

    /// Answers a change of priority that was applied to the table.
    pub(crate) fn prioritized(&self, pending: &PendingPriority) -> Result<Step, Failure> {
        let PendingPriority { request, before, priority, .. } = *pending;
        let table = &self.ledger.table;
        let waiter = table.waiter(request);
        let frame = waiter.map(|waiter| waiter.frame);
        let frame = frame.or_else(|| table.hold_of(request).map(|hold| hold.frame));
        let Some(frame) = frame else {
            return Err(Failure::new(ErrorName::NotHeld, "the request has ended"));
        };
        tracing::info!(session = %format_args!("s{}", table.session(frame)), priority, "prioritized");
        Ok(Step::reply(&Prioritized {
            session: format!("s{}", table.session(frame)),
            before,
            priority,
            position: waiter.map_or(0, |waiter| position(table, waiter.id)),
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

/// The position of a waiter at the key that blocks it.
fn position(table: &Table, id: RequestId) -> u64 {
    let served = table.why(id).map(|why| table.served(&why.key)).unwrap_or_default();
    served.into_iter().position(|it| it == id).map_or(0, |at| at as u64 + 1)
}
