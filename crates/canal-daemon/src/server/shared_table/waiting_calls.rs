//! Calls that wait for the shared log: how long they wait, and the messages that clients get
//! meanwhile.
//!
//! Invariant: a client that expects a message gets one before it would consider the daemon dead.

use crate::calls::call::ConnId;
use crate::cluster::member_and_engine::Cluster;
use crate::net::call_state::{Awaiting, CallState, LogWait, PendingAcquire, PendingCall, Subject};
use crate::server::Server;
use crate::wording;
use canal_protocol::{Failure, Progress};
use canal_sys::clock;

impl Server {
    /// Sends what is due to the clients whose calls wait for the log. Fails all these calls while
    /// the engine refuses this host and only a person can fix that.
    pub(crate) fn look_at_pending(&mut self) {
        let now = clock::boottime_ms();
        let is_refused = self.decide.cluster().is_some_and(Cluster::is_refused);
        let due = self.conns.log_waits().filter(|(_, wait)| is_refused || wait.due() <= now);
        let due: Vec<ConnId> = due.map(|(id, _)| id).collect();
        for id in due {
            let why = self.decide.not_a_member();
            let Some(conn) = self.conns.get(id) else { continue };
            let Some(LogWait { patience, .. }) = conn.log_wait_mut() else { continue };
            match patience.as_mut().filter(|_| !is_refused) {
                None => self.give_up_waiting(id, why),
                Some(it) if it.until.is_some_and(|until| until <= now) => {
                    let failure = wording::timeout(&it.key, &why.message);
                    self.give_up_waiting(id, failure);
                }
                Some(it) => {
                    if std::mem::take(&mut it.untold) {
                        let (key, reason) = (it.key.to_string(), why.message);
                        conn.progress(&Progress { key, reason, ..Progress::default() });
                    }
                }
            }
        }
    }

    /// Fails a call that waits for the log. If its change is a request, it is released when it
    /// comes out of the log. Any other change takes effect then.
    fn give_up_waiting(&mut self, id: ConnId, failure: Failure) {
        let CallState::Log(wait) = self.conns.end_wait(id) else { return };
        let failure = match wait.what {
            Awaiting::MembershipOf(_)
            | Awaiting::Change(_, PendingCall::Ask(_) | PendingCall::Question(_)) => failure,
            Awaiting::Change(..) => failure.hint(
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
        };
        self.carry_out(id, Err(failure));
    }

    /// Makes the first call of a connection wait until this host is a member, or has read the log.
    pub(crate) fn put_off(&mut self, id: ConnId) {
        let step = self.wait_for_log(id, Awaiting::Membership);
        self.carry_out(id, Ok(step));
        self.look_at_pending();
    }

    /// Serves the calls that waited until this host is a member, or has read the log.
    pub(crate) fn resume_put_off(&mut self) {
        self.conns.end_waits(Subject::Log, |state| {
            matches!(state, CallState::Log(LogWait { what: Awaiting::Membership, .. }))
        });
    }

    /// Asks for the requests that had to wait until this host may ask for them.
    pub(crate) fn ask_for_those_waiting(&mut self) {
        self.ask_again(Subject::Log, |state| {
            matches!(state, CallState::Log(LogWait { what: Awaiting::MembershipOf(_), .. }))
        });
    }

    /// Asks for deferred requests again: all of them after a death, otherwise those whose time is
    /// over.
    pub(crate) fn retry_deferred(&mut self, deaths: bool) {
        let now = clock::now();
        let is_due = |it: &PendingAcquire| deaths || it.deferred_until.is_none_or(|at| at <= now);
        let is_due = |state: &CallState| matches!(state, CallState::Deferred(it) if is_due(it));
        self.ask_again(Subject::Death, is_due);
    }

    /// Repeats requests for locks, or questions whether they would be granted, for calls that had
    /// to wait until then.
    fn ask_again(&mut self, subject: Subject, is_due: impl Fn(&CallState) -> bool) {
        for (id, state) in self.conns.end_waits(subject, is_due) {
            let newcomer = match state {
                CallState::Deferred(it) => it,
                CallState::Log(LogWait { what: Awaiting::MembershipOf(it), .. }) => it,
                _ => continue,
            };
            let step = self.ask(newcomer);
            self.carry_out(id, Ok(step));
        }
    }
}
