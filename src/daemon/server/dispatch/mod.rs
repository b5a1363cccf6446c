//! The dispatcher: it begins each call, carries out the [`Step`]s that handlers return, and ends
//! the call. No other code can end a call.
//!
//! Each message has a handler in its own file in `requests` or `queries`; the handler returns a
//! step. `wait` and `propose` make the [`CallState`] of a call that waits, and `carry_out` keeps it
//! in the connection. `follow`, `late`, `leaders` and `patience` take it out and continue the call.
//!
//! Invariant: a call that was taken from its connection is answered, or its connection keeps the
//! state of its wait.

mod carry_out;
mod follow;
mod late;
mod leaders;
mod patience;
mod propose;
pub(in crate::daemon) mod step;
mod wait;

use crate::daemon::calls::answer::Answer;
use crate::daemon::calls::call::{Asked, Call};
use crate::daemon::calls::conn_id::ConnId;
use crate::daemon::net::call_state::CallState;
use crate::daemon::server::Server;
use crate::daemon::server::dispatch::step::Step;
use crate::protocol::Failure;
use crate::protocol::service::{Description, Info, ServiceError, description};
use crate::sys::peer::Credentials;

impl Server {
    /// Serves the next call of a connection.
    pub(crate) fn serve_one(&mut self, id: ConnId) {
        let front = self.conns.peek(id).and_then(|conn| conn.calls.front());
        let Some(asked) = front.map(|call| &call.asked) else { return };
        let (needs_log, is_report) = (asked.needs_log(), asked.is_report());
        if asked.needs_news() && !self.is_present() || needs_log && !self.ledger.is_member() {
            return self.put_off(id);
        }
        if is_report {
            return self.put_off_report(id);
        }
        self.serve_next(id);
    }

    /// Serves the next call of a connection, even if it asks for a report or needs the log.
    fn serve_next(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get(id) else { return };
        let Some(call) = conn.calls.pop_front() else { return };
        conn.begin_call(call.oneway);
        let (peer, heard_end) = (conn.peer, conn.heard_end);
        let step = self.begin(id, peer, heard_end, call);
        self.carry_out(id, step);
    }

    /// Begins a call.
    fn begin(
        &mut self,
        id: ConnId,
        peer: Credentials,
        heard_end: bool,
        call: Call,
    ) -> Result<Step, Failure> {
        let Call { asked, more, fds, .. } = call;
        self.may_call(id, &asked)?;
        match asked {
            Asked::Acquire(_) | Asked::Collect(_) if self.stopping || heard_end => Ok(Step::Leave),
            Asked::Abandon(abandon) => self.abandon(peer, &abandon),
            Asked::Acquire(acquire) => self.acquire(id, acquire, more, fds),
            Asked::Collect(collect) => self.collect(id, *collect, more),
            Asked::Configuration => Ok(self.configuration(id, peer)),
            Asked::Confirm(confirm) => self.confirm(id, peer, &confirm),
            Asked::ConfirmAt(confirm) => self.confirm_at(id, &confirm),
            Asked::EndedLeases(query) => self.ended_leases(peer, &query),
            Asked::History(query) => self.history(id, &query),
            Asked::HistoryStats(query) => self.history_stats(id, peer, &query),
            Asked::Identify => self.identify(),
            Asked::Kill(kill) => self.kill(peer, &kill),
            Asked::Leader(query) => self.leader(id, peer, &query, more),
            Asked::Metrics => Ok(self.metrics()),
            Asked::Page(query) => self.page(&query),
            Asked::Prioritize(asked) => self.prioritize(id, peer, &asked),
            Asked::Release(release) => self.release(id, peer, &release, fds),
            Asked::Reload => self.reload(id, peer),
            Asked::Renew(renew) => self.renew(id, peer, &renew),
            Asked::Report(report) => self.report(&report),
            Asked::Resize(resize) => self.resize(id, &resize),
            Asked::Restrict(restrict) => self.restrict(id, &restrict),
            Asked::Status(query) => self.status(id, peer, &query, more),
            Asked::Stop(_) => self.stop(peer),
            Asked::WaitsNear(query) => self.waits_near(id, peer, &query),
            Asked::Why(query) => self.why(peer, &query),
            Asked::WouldAcquire(asked) => self.would_acquire(id, &asked),
            Asked::WouldKill(asked) => self.would_kill(peer, &asked),
            Asked::WouldRelease(release) => self.would_release(id, peer, &release, fds),
            Asked::Graph(_) => Ok(self.graph(peer)),
            Asked::Info => Ok(Step::reply(&Info::ours())),
            Asked::Description(query) => match description(&query.interface) {
                Some(text) => Ok(Step::reply(&Description { description: text.to_owned() })),
                None => {
                    let interface = query.interface;
                    let error = ServiceError::InterfaceNotFound { interface };
                    Ok(Step::Answer(Answer::service_error(&error)))
                }
            },
            Asked::Wrong(error) => Ok(Step::Answer(Answer::service_error(&error))),
            Asked::Junk(failure) => {
                Ok(Step::Answer(Answer { closes: true, ..Answer::failure(&failure) }))
            }
        }
    }

    /// Makes a connection wait for its turn, because its next call asks for a report.
    fn put_off_report(&mut self, id: ConnId) {
        self.conns.set_state(id, CallState::Report);
        self.queue_for_report(id);
    }

    /// Queues a connection for a report.
    pub(crate) fn queue_for_report(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.peek(id) {
            self.reports.add(id, conn.peer.uid, conn.unsent());
        }
    }

    /// Serves the next call of a connection that has waited for its turn to get a report.
    pub(crate) fn serve_report(&mut self, id: ConnId) {
        self.conns.set_state(id, CallState::Idle);
        self.serve_next(id);
        self.conns.activate(id);
    }
}
