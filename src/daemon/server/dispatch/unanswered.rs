//! A safety net below all paths that end a call.
//!
//! The types of the dispatcher ensure that each call is answered or waits. They cannot ensure that
//! the object of the wait outlives the call. At the end of a turn, this file finds calls that wait
//! for nothing. Each is a fault of this daemon: the daemon logs it, answers the client, and
//! releases the grants of the request. It is more than an assertion, because no client may hang.

use crate::daemon::calls::conn_id::ConnId;
use crate::daemon::net::connection::CallState;
use crate::daemon::server::Server;
use crate::daemon::server::dispatch::step::Step;
use crate::protocol::{ErrorName, Failure};

impl Server {
    /// Answers the calls of this turn that no other code would ever answer.
    pub(crate) fn answer_the_forgotten(&mut self) {
        let mut looked_at = std::mem::take(&mut self.conns.to_answer);
        looked_at.extend(self.waiters.take_removed());
        // While this daemon ends, it leaves the calls to the next daemon.
        let forgotten = looked_at.iter().filter(|id| !self.stopping && self.is_forgotten(**id));
        let mut forgotten: Vec<ConnId> = forgotten.copied().collect();
        looked_at.clear();
        self.conns.to_answer = looked_at;
        if forgotten.is_empty() {
            return;
        }
        forgotten.sort_unstable();
        forgotten.dedup();
        for id in forgotten {
            self.answer_forgotten(id);
        }
    }

    fn is_forgotten(&self, id: ConnId) -> bool {
        let conn = self.conns.peek(id).filter(|it| it.unanswered && !it.heard_end && !it.closing);
        conn.is_some_and(|conn| match *conn.doing() {
            CallState::Nothing => true,
            CallState::Waits(request) => {
                self.waiters.get(request).is_none_or(|waiter| waiter.conn != Some(id))
            }
            CallState::InFlight => self.in_flight.wait_of(id).is_none(),
            CallState::Deferred => !self.waiters.is_deferred(id),
            CallState::Stores(request) => !self.waiters.is_unsynced(id, request),
            CallState::Configuration => !self.in_force.readings.has_client(id),
            CallState::Report => !conn.awaits_report,
            CallState::History => !self.history.is_asked_by(id),
            CallState::Watches(_) | CallState::WatchesLeader(_) => false,
        })
    }

    fn answer_forgotten(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get(id) else { return };
        tracing::error!(pid = conn.peer.pid, doing = ?conn.doing(), "{FORGOTTEN}");
        let step = match conn.doing() {
            CallState::Waits(request) | CallState::Stores(request) => {
                Ok(Step::GiveBack(*request, lost_track()))
            }
            _ => Err(lost_track()),
        };
        self.carry_out(id, step);
    }
}

/// The failure for a client whose call this daemon lost track of.
pub(crate) fn lost_track() -> Failure {
    let message = "the daemon lost track of this call because of a defect";
    Failure::new(ErrorName::Fault, message).hint("report it with the daemon's log")
}

/// The log message for such a fault.
const FORGOTTEN: &str = "a defect of this daemon left a call without an answer";
