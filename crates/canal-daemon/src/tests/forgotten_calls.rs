//! Checks that each call waits for something that will end its wait.

use crate::calls::call::ConnId;
use crate::net::call_state::{Awaiting, CallState};
use crate::net::connection::Connection;
use crate::server::Server;

impl Server {
    /// The state of a call that nothing will end, if there is one at the end of a turn.
    pub(crate) fn forgotten_call(&self) -> Option<String> {
        let mut calls = self.conns.iter().filter(|(_, conn)| !conn.is_closing && !self.stopping);
        let found = calls.find(|(id, conn)| !self.will_end(*id, conn));
        found.map(|(_, conn)| format!("nothing ends {:?}", conn.state()))
    }

    fn will_end(&self, id: ConnId, conn: &Connection) -> bool {
        match conn.state() {
            CallState::Waits(request) => {
                self.waiters.get(*request).is_some() && self.conns.waiter(*request) == Some(id)
            }
            CallState::Log(wait) => match &wait.what {
                Awaiting::Change(ticket, _) => self.decide.in_flight.conn_of(*ticket) == Some(id),
                Awaiting::Membership => self.decide.is_shared() && !conn.calls.is_empty(),
                Awaiting::MembershipOf(_) => self.decide.is_shared(),
            },
            CallState::Deferred(newcomer) => newcomer.deferred_until.is_some(),
            CallState::Stores(..) => false,
            // A call waits for the configuration at most until a time.
            CallState::Idle
            | CallState::Report(_)
            | CallState::Configuration
            | CallState::History
            | CallState::Watches(_)
            | CallState::WatchesLeader(..) => true,
        }
    }
}
