//! Calls that wait for the shared log: how long they wait, and the messages that clients get
//! meanwhile.
//!
//! Invariant: a client that expects a message gets one before it would consider the daemon dead.

use crate::calls::conn_id::ConnId;
use crate::calls::pending_acquire::PendingAcquire;
use crate::net::call_state::{Awaiting, CallState, LogWait, Subject};
use crate::server::Server;
use crate::wording::refusal;
use canal_protocol::{Failure, Progress};
use canal_sys::clock;

impl Server {
    /// Sends what is due to the clients whose calls wait for the log.
    pub(crate) fn look_at_pending(&mut self) {
        if self.conns.log_waits().next().is_none() {
            return;
        }
        self.fail_pending();
        let now = clock::boottime_ms();
        let due = self.conns.log_waits().filter(|(_, wait)| wait.due() <= now);
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
        let ids: Vec<ConnId> = self.conns.log_waits().map(|(id, _)| id).collect();
        for id in ids {
            let failure = self.not_a_member();
            self.give_up_waiting(id, failure);
        }
    }

    fn look_at_one(&mut self, id: ConnId, now: u64) {
        let why = self.not_a_member();
        let Some(conn) = self.conns.get(id) else { return };
        let Some(LogWait { patience, .. }) = conn.log_wait_mut() else { return };
        let Some(patience) = patience else { return self.give_up_waiting(id, why) };
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
            conn.progress(&progress);
        }
    }

    /// Fails a call that waits for the log. If its change is a request, it is released when it
    /// comes out of the log. Any other change takes effect then.
    fn give_up_waiting(&mut self, id: ConnId, failure: Failure) {
        let CallState::Log(wait) = self.conns.end_wait(id) else { return };
        let failure = match wait.what {
            Awaiting::Change(ticket) if !self.in_flight.is_question(ticket) => failure.hint(
                "the change is still queued; it will be applied once the engine is reachable",
            ),
            Awaiting::Membership => {
                if let Some(conn) = self.conns.get(id)
                    && let Some(call) = conn.calls.pop_front()
                {
                    conn.begin_call(call.replies);
                }
                failure
            }
            _ => failure,
        };
        self.carry_out(id, Err(failure));
    }

    /// Makes the first call of a connection wait until this host is a member, or has read the log.
    pub(super) fn put_off(&mut self, id: ConnId) {
        let Some(call) = self.conns.peek(id).and_then(|conn| conn.calls.front()) else { return };
        let patience = call.patience();
        let step = self.wait_for_log(id, Awaiting::Membership, patience);
        self.carry_out(id, Ok(step));
        self.fail_pending();
    }

    /// Serves the calls that waited until this host is a member, or has read the log.
    pub(crate) fn resume_put_off(&mut self) {
        self.conns.end_waits(Subject::Log, |state| match state {
            CallState::Log(LogWait { what: Awaiting::Membership, .. }) => Ok(()),
            _ => Err(state),
        });
    }

    /// Asks for the requests that had to wait until this host may ask for them.
    pub(crate) fn ask_for_those_waiting(&mut self) {
        let newcomers = self.conns.end_waits(Subject::Log, |state| match state {
            CallState::Log(LogWait { what: Awaiting::MembershipOf(newcomer), .. }) => Ok(newcomer),
            _ => Err(state),
        });
        for (_, newcomer) in newcomers {
            self.ask_again(*newcomer);
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
                    let step = self.wait_for_membership(request);
                    self.carry_out(id, step);
                }
                None => self.end_unseen(id),
            }
        }
    }
}
