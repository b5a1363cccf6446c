//! Changes the priority of waiting requests.
//!
//! Invariant: a client may change only its own requests, unless it is root or runs the daemon, and
//! it needs the same permission for a priority above 0 as for a request with one.

use std::sync::Arc;

use crate::calls::parameters;
use crate::net::call_state::PendingCall;
use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step};
use crate::store::table_and_log::setting_bytes;
use crate::wording::{denied, not_held};
use canal_core::{Change, RequestId, Table, WaiterState};
use canal_protocol::{Prioritize, Prioritized};

impl Server {
    pub(crate) fn prioritize(&mut self, caller: &Caller, asked: &Prioritize) -> Result {
        let peer = caller.peer;
        let session = parameters::session(&asked.session)?;
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
        let may = |waiter: &&WaiterState| self.may_hold(caller.id, &waiter.request.items, priority);
        waiters.iter().try_for_each(may)?;
        let pending = PendingCall::Prioritize(first.id, first.request.priority, priority);
        let request = Arc::clone(&first.request);
        // The entry needs room in the journal that no request has reserved.
        request.items.iter().try_for_each(|it| self.reserve(setting_bytes(&it.key, 0)))?;
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
