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
pub(crate) mod step;
mod wait;

use std::os::fd::OwnedFd;

use crate::calls::answer::Answer;
use crate::calls::call::{Asked, Call, Replies, Trait};
use crate::calls::conn_id::ConnId;
use crate::calls::table::table_of_calls;
use crate::net::call_state::CallState;
use crate::server::Server;
use crate::server::dispatch::step::Step;
use canal_protocol::Failure;
use canal_protocol::service::{Description, DescriptionQuery, Info, ServiceError, description};
use canal_sys::peer::Credentials;

/// The client of a call.
struct Caller {
    id: ConnId,
    peer: Credentials,
    /// Whether it takes several replies.
    more: bool,
    /// The descriptors that came with the call.
    fds: Vec<OwnedFd>,
}

macro_rules! define_begin {
    (
        |$server:ident, $caller:ident, $it:ident|
        $(($interface:ident $name:literal) $call:ident($parameters:ty) [$($trait:ident),*] =>
            $answer:expr;)*
    ) => {
        /// Begins a call.
        #[expect(unused_variables, reason = "some methods have no parameters")]
        fn begin(&mut self, asked: Asked, $caller: Caller) -> Result<Step, Failure> {
            let $server = self;
            match asked {
                $(Asked::$call($it) => $answer,)*
                Asked::Wrong(error) => Ok(Step::Answer(Answer::service_error(&error))),
                Asked::Junk(failure) => {
                    Ok(Step::Answer(Answer { closes: true, ..Answer::failure(&failure) }))
                }
            }
        }
    };
}

impl Server {
    /// Serves the next call of a connection.
    pub(crate) fn serve_one(&mut self, id: ConnId) {
        let front = self.conns.peek(id).and_then(|conn| conn.calls.front());
        let Some(asked) = front.map(|call| &call.asked) else { return };
        let (needs_log, is_report) = (asked.is(Trait::NeedsLog), asked.is(Trait::IsReport));
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
        let Call { asked, replies, fds } = call;
        conn.begin_call(replies);
        let (peer, heard_end) = (conn.peer, conn.heard_end());
        let step = match self.may_call(id, &asked) {
            Err(failure) => Err(failure),
            // The client is gone, or asks the next daemon.
            Ok(()) if (self.stopping || heard_end) && asked.is(Trait::AsksForLock) => {
                Ok(Step::Leave)
            }
            Ok(()) => self.begin(asked, Caller { id, peer, more: replies == Replies::Many, fds }),
        };
        self.carry_out(id, step);
    }

    table_of_calls!(define_begin);

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

fn describe(query: DescriptionQuery) -> Step {
    let interface = query.interface;
    match description(&interface) {
        Some(text) => Step::reply(&Description { description: text.to_owned() }),
        None => {
            let error = ServiceError::InterfaceNotFound { interface };
            Step::Answer(Answer::service_error(&error))
        }
    }
}
