//! Begins each call, and serves reports when it is their turn.
//!
//! Each message has a handler in its own file in `requests`; the handler returns a [`Step`].
//! `step` carries it out: it answers the call, or keeps the [`CallState`] of a call that waits in
//! the connection. `follow` and `membership` take that state out and continue the call.
//!
//! Invariant: a call that was taken from its connection is answered, or its connection keeps the
//! state of its wait.

use std::time::Duration;

use crate::calls::call::Answer;
use crate::calls::call::ConnId;
use crate::calls::call::{Asked, Call, Replies, Trait};
use crate::calls::table::table_of_calls;
use crate::limits::{CALLS_AHEAD_MAX, REPORT_TIME_PER_TURN};
use crate::net::call_state::CallState;
use crate::server::Server;
use crate::server::step::{Caller, Result, Step};
use canal_protocol::service::{Description, DescriptionQuery, Info, ServiceError, description};
use canal_sys::clock;

macro_rules! define_begin {
    (
        |$server:ident, $caller:ident, $it:ident|
        $($interface:ident: $call:ident($parameters:ty) [$($trait:ident),*] => $answer:expr;)*
    ) => {
        /// Begins a call.
        #[expect(unused_variables, reason = "some methods have no parameters")]
        fn begin(&mut self, asked: Asked, $caller: &mut Caller) -> Result {
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
        if asked.needs_news() && !self.decide.is_present() || needs_log && !self.decide.is_member()
        {
            return self.put_off(id);
        }
        if !is_report {
            return self.serve_next(id);
        }
        // The connection waits for its turn.
        self.conns.set_state(id, CallState::Report);
        if let Some(conn) = self.conns.peek(id) {
            self.reports.add(id, conn.peer.uid, conn.unsent());
        }
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
            Ok(()) => {
                self.begin(asked, &mut Caller { id, peer, more: replies == Replies::Many, fds })
            }
        };
        self.carry_out(id, step);
    }

    table_of_calls!(define_begin);

    /// Serves the next call of a connection that has waited for its turn to get a report.
    fn serve_report(&mut self, id: ConnId) {
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

/// Reports: replies about the whole table, which may be long.
///
/// Invariant: a report is built only if its client has read all earlier replies, and the limits on
/// unread replies, for its user and for all users together, leave room for it. Until then the call
/// waits in its connection, and other calls are served.
impl Server {
    /// Builds reports while this turn has room and time for them.
    pub(crate) fn serve_reports(&mut self) {
        let begun = clock::now();
        let Some(stuck) = self.reports.begin(&self.conns, begun) else { return };
        for id in stuck {
            tracing::debug!("closing a connection that does not read its report");
            if let Some(conn) = self.conns.get(id) {
                conn.discard_output();
            }
        }
        let mut time = Duration::ZERO;
        let may_all = self.not_bound();
        while time < REPORT_TIME_PER_TURN
            && let Some(id) = self.reports.next(&self.conns, &may_all)
        {
            self.report_to(id);
            time = clock::now().saturating_duration_since(begun);
        }
        self.reports.end(begun, time);
    }

    /// Whether a user is exempt from the limit on the unread replies of all users together.
    pub(crate) fn not_bound(&self) -> impl Fn(u32) -> bool + use<> {
        let own = self.about.uid;
        move |uid| uid == own || uid == 0
    }

    fn report_to(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get(id) else { return };
        let uid = conn.peer.uid;
        if let Some(watch) = conn.status_watch_mut() {
            watch.is_queued = false;
            let selection = watch.selection.clone();
            self.show_status(id, uid, &selection);
        } else if matches!(conn.state(), CallState::Report) {
            let was_full = conn.calls.len() >= CALLS_AHEAD_MAX;
            self.serve_report(id);
            if was_full {
                self.conns.hear_again(id);
            }
        }
        self.reports.sent(&self.conns, id);
    }
}
