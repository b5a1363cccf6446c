//! Handles the ends of connections.
//!
//! Invariant: the end of a connection withdraws requests and grants that its client has not
//! received. A grant that the client has received stays held.

use crate::calls::call::Asked;
use crate::calls::conn_id::ConnId;
use crate::net::call_state::{Awaiting, CallState};
use crate::net::connections::Disconnected;
use crate::server::Server;
use canal_core::{Change, RequestId, Withdrawal};

impl Server {
    /// Handles a client that is gone: withdraws its waiting request, and takes back a grant that it
    /// has not received.
    pub(crate) fn disconnect(&mut self, disconnected: Disconnected) {
        let Disconnected { id, unread } = disconnected;
        let Some(conn) = self.conns.get(id) else { return };
        let untold = conn.untold.take().filter(|_| unread || !conn.is_flushed());
        if untold.is_some() {
            conn.discard_output();
        }
        let provisional = std::mem::take(&mut conn.provisional);
        // `Abandon` is queued behind the call that waited, so it was not served.
        let is_abandoned = conn.calls.iter().any(|call| matches!(call.asked, Asked::Abandon(_)));
        let mut gone: Vec<RequestId> = provisional.into_iter().chain(untold).collect();
        match self.abandon_call(id) {
            #[cfg(test)]
            CallState::Waits(_)
                if crate::sim::is_broken(crate::sim::Rule::DeadWaitersAreWithdrawn) => {}
            CallState::Waits(request) => {
                if is_abandoned {
                    self.history.abandons(request);
                }
                gone.push(request);
            }
            CallState::Stores(lease) => gone.push(lease.request),
            CallState::Log(wait) => {
                if let (Awaiting::Membership, Some(conn)) = (wait.what, self.conns.get(id)) {
                    conn.calls.clear();
                }
            }
            CallState::Configuration => self.in_force.readings.forget(id),
            _ => {}
        }
        for request in gone {
            // The request no longer has a client.
            if let Some(waiter) = self.waiters.get_mut(request) {
                waiter.conn = None;
            }
            let why = Withdrawal::Cancelled;
            self.propose(Change::Withdraw { request, why });
        }
        self.conns.activate(id);
    }

    /// Takes what the current call of a connection waits for, because it has no client left. A
    /// client that only sends nothing further still gets the answers that nothing depends on.
    fn abandon_call(&mut self, id: ConnId) -> CallState {
        let Some(conn) = self.conns.peek(id) else { return CallState::Idle };
        let goes_on = match conn.state() {
            // The change completes even if its client no longer waits for the answer.
            CallState::Log(wait) => !conn.is_closing() && matches!(wait.what, Awaiting::Change(_)),
            CallState::Report | CallState::History => true,
            _ => false,
        };
        if goes_on { CallState::Idle } else { self.conns.set_state(id, CallState::Idle) }
    }
}
