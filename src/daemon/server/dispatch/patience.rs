//! Calls that wait for the shared log: how long they wait, and the messages that clients get
//! meanwhile.
//!
//! Invariant: a client that expects a message gets one before it would consider the daemon dead.

use crate::daemon::calls::conn_id::ConnId;
use crate::daemon::calls::in_flight::{Awaiting, InFlight, LogWait};
use crate::daemon::calls::pending_acquire::PendingAcquire;
use crate::daemon::net::connection::CallState;
use crate::daemon::server::Server;
use crate::daemon::server::dispatch::permit::DispatchPermit;
use crate::daemon::server::dispatch::step::Step;
use crate::daemon::wording::refusal;
use crate::protocol::{Failure, Progress};
use crate::sys::clock;

/// After this time, the client of a request that may wait learns what the request waits for.
const FIRST_WORD_MS: u64 = 1_000;

/// After this time, the client of any other call learns that the engine does not answer. Clients
/// wait 5 s.
const ANSWER_MS: u64 = 4_000;

impl Server {
    /// Sends what is due to the clients whose calls wait for the log.
    pub(crate) fn look_at_pending(&mut self) {
        if self.in_flight.waits().next().is_none() {
            return;
        }
        self.fail_pending();
        let now = clock::boottime_ms();
        let due = self.in_flight.waits().filter(|(_, wait)| wait.due() <= now);
        let due: Vec<ConnId> = due.map(|(id, _)| id).collect();
        for id in due {
            self.look_at_one(id, now);
        }
    }

    /// Fails the calls that wait for the log while the engine refuses this host and only a person
    /// can fix that.
    fn fail_pending(&mut self) {
        if self.cluster.as_ref().is_none_or(|cluster| !cluster.is_refused()) {
            return;
        }
        let ids: Vec<ConnId> = self.in_flight.waits().map(|(id, _)| id).collect();
        for id in ids {
            let failure = self.not_a_member();
            self.give_up_waiting(id, failure);
        }
    }

    fn look_at_one(&mut self, id: ConnId, now: u64) {
        let why = self.not_a_member();
        let Some(pending) = self.in_flight.wait_of_mut(id) else { return };
        let Some(patience) = &mut pending.patience else {
            return self.give_up_waiting(id, why);
        };
        if patience.until.is_some_and(|until| until <= now) {
            let failure = refusal::timeout_of(&patience.key, &why.message);
            return self.give_up_waiting(id, failure);
        }
        if std::mem::take(&mut patience.untold) {
            let progress = Progress {
                key: patience.key.to_string(),
                position: 0,
                waiting: 0,
                session: None,
                reason: why.message,
                holders: Vec::new(),
                estimate: None,
            };
            if let Some(conn) = self.conns.get(id) {
                conn.progress(&progress);
            }
        }
    }

    /// Fails a call that waits for the log. If its change is a request, it is released when it
    /// comes out of the log. Any other change takes effect then.
    fn give_up_waiting(&mut self, id: ConnId, failure: Failure) {
        let Some(pending) = self.in_flight.end_wait(id) else { return };
        let changes = matches!(pending.what, Awaiting::Change(_))
            && !self.in_flight.is_question(pending.what);
        self.in_flight.abandon(pending.what);
        if pending.what == Awaiting::Membership
            && let Some(conn) = self.conns.get(id)
            && let Some(call) = conn.calls.pop_front()
        {
            conn.begin_call(&DispatchPermit::new(), call.oneway);
        }
        let failure = match changes {
            true => failure.hint(
                "the change is still queued; it will be applied once the engine is reachable",
            ),
            false => failure,
        };
        self.carry_out(id, Err(failure));
    }

    /// Forgets a call that waits for the log if its client is gone.
    pub(crate) fn disconnect_pending(&mut self, id: ConnId) {
        let Some(pending) = self.in_flight.wait_of(id) else { return };
        let closing = self.conns.peek(id).is_none_or(|conn| conn.closing);
        // Any other change completes even if its client no longer waits for the answer.
        if !closing && matches!(pending.what, Awaiting::Change(_)) {
            return;
        }
        let what = pending.what;
        self.in_flight.end_wait(id);
        self.in_flight.abandon(what);
        if let Some(conn) = self.conns.get(id) {
            conn.set_doing(&DispatchPermit::new(), CallState::Nothing);
            if what == Awaiting::Membership {
                conn.calls.clear();
            }
        }
    }

    /// Makes the first call of a connection wait until this host is a member, or has read the log.
    pub(super) fn put_off(&mut self, id: ConnId) {
        let Some(call) = self.conns.peek(id).and_then(|conn| conn.calls.front()) else { return };
        let patience = call.patience();
        let waiting = self.wait_for_log(id, Awaiting::Membership, patience);
        self.carry_out(id, Ok(Step::Wait(waiting)));
        self.fail_pending();
    }

    /// Serves the calls that waited until this host is a member, or has read the log.
    pub(crate) fn resume_put_off(&mut self) {
        for id in self.in_flight.take_put_off() {
            self.leave(id);
        }
    }

    /// Asks for the requests that had to wait until this host may ask for them.
    pub(crate) fn ask_for_those_waiting(&mut self) {
        for newcomer in self.in_flight.take_awaiting_membership() {
            self.ask_again(newcomer);
        }
    }

    /// Repeats a request for a lock, or the question whether it would be granted, for a call that
    /// had to wait until then.
    pub(super) fn ask_again(&mut self, newcomer: PendingAcquire) {
        let id = newcomer.conn;
        let step = if newcomer.is_question { self.pose(newcomer) } else { self.ask(newcomer) };
        self.carry_out(id, Ok(step));
    }

    /// Makes the requests of a lost incarnation wait until this host is a member again. Fails each
    /// call whose request is no longer in the table.
    pub(crate) fn wait_for_next_incarnation(
        &mut self,
        requests: Vec<(ConnId, Option<PendingAcquire>)>,
    ) {
        for (id, request) in requests {
            match request {
                Some(request) => {
                    let step = self.wait_for_membership(request).map(Step::Wait);
                    self.carry_out(id, step);
                }
                None => self.end_unseen(id),
            }
        }
    }
}

impl InFlight {
    /// When the next of these calls is due, in milliseconds of CLOCK_BOOTTIME.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.waits().map(|(_, wait)| wait.due()).min()
    }
}

impl LogWait {
    fn due(&self) -> u64 {
        match &self.patience {
            None => self.since + ANSWER_MS,
            Some(patience) => {
                let word = patience.untold.then_some(self.since + FIRST_WORD_MS);
                word.into_iter().chain(patience.until).min().unwrap_or(u64::MAX)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::calls::pending_acquire::Patience;

    #[test]
    fn a_waiting_call_is_told_why_and_every_other_is_answered_before_its_client_gives_up() {
        let pending = |patience| LogWait { what: Awaiting::Membership, since: 1_000, patience };
        assert_eq!(pending(None).due(), 5_000);
        let patience = |until, untold| Some(Patience { until, untold, key: "a".into() });
        assert_eq!(pending(patience(None, true)).due(), 2_000);
        assert_eq!(pending(patience(Some(1_500), true)).due(), 1_500);
        assert_eq!(pending(patience(Some(9_000), false)).due(), 9_000);
        assert_eq!(pending(patience(None, false)).due(), u64::MAX);
    }
}
