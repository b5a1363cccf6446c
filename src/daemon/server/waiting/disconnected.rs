//! Handles the ends of connections.
//!
//! Invariant: the end of a connection withdraws requests and grants that its client has not
//! received. A grant that the client has received stays held.

use crate::core::{Change, RequestId, Withdrawal};
use crate::daemon::calls::call::Asked;
use crate::daemon::net::connection::CallState;
use crate::daemon::net::connections::Disconnected;
use crate::daemon::server::Server;

impl Server {
    /// Handles a client that is gone: withdraws its waiting request, and takes back a grant that it
    /// has not received.
    pub(crate) fn disconnect(&mut self, disconnected: Disconnected) {
        self.disconnect_pending(disconnected.id);
        let Some(conn) = self.conns.get(disconnected.id) else { return };
        let untold = conn.untold.take().filter(|_| disconnected.unread || !conn.is_flushed());
        if untold.is_some() {
            conn.discard_output();
        }
        let provisional = std::mem::take(&mut conn.provisional);
        // `Abandon` is queued behind the call that waited, so it was not served.
        let is_abandoned = conn.calls.iter().any(|call| matches!(call.asked, Asked::Abandon(_)));
        let doing = self.abandon_call(disconnected.id);
        let mut gone: Vec<RequestId> = provisional.into_iter().chain(untold).collect();
        match doing {
            #[cfg(test)]
            CallState::Waits(_)
                if crate::sim::is_broken(crate::sim::Rule::DeadWaitersAreWithdrawn) => {}
            CallState::Waits(request) | CallState::Stores(request) => {
                if is_abandoned {
                    self.history.abandons(request);
                }
                gone.push(request);
            }
            CallState::Deferred => {
                self.waiters.drop_deferred(disconnected.id);
            }
            CallState::Configuration => self.in_force.readings.forget(disconnected.id),
            CallState::Nothing
            | CallState::InFlight
            | CallState::Report
            | CallState::History
            | CallState::Watches(_)
            | CallState::WatchesLeader(_) => {}
        }
        for request in gone {
            // The request no longer has a client.
            if let Some(waiter) = self.waiters.get_mut(request) {
                waiter.conn = None;
            }
            let why = Withdrawal::Cancelled;
            self.propose(Change::Withdraw { request, why });
        }
        self.conns.activate(disconnected.id);
    }
}
