//! The steps of a turn of the daemon, and their order. `due_work_and_exit` does what is due at a
//! time.
//!
//! A turn carries out a [`Batch`] in this order: closed connections and deaths, releases and
//! renewals, requests. Each of them only proposes changes. The turn follows the log after each
//! call, so that the next one sees its changes. It records the decisions, and only then sends the
//! replies. If many clients call at once, some calls are recorded and answered before the next
//! calls are served. A turn reads no connection after it began to serve.
//!
//! Each message has a handler in its own file in `requests`; the handler returns a [`Step`].
//! `call_step` carries it out: it answers the call, or keeps the [`CallState`] of a call that waits
//! in the connection. `follow_log` and `shared_table` take that state out and continue the call.
//!
//! Invariants: a call that was taken from its connection is answered, or its connection keeps the
//! state of its wait. Before a turn answers a call or sends a grant, it applies every death that
//! was reported before the turn.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::calls::call::{Answer, Asked, Call, ConnId, Trait};
use crate::calls::call_table::table_of_calls;
use crate::cluster::end_commands::ToEnd;
use crate::net::all_connections::{Accepted, Source, in_turns};
use crate::net::call_state::CallState;
use crate::net::connection::{CALLS_AHEAD_MAX, Connection};
use crate::net::unread_reports::REPORT_TIME_PER_TURN;
use crate::processes::watch_owners::Ended;
use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step};
use crate::view::visible_table::Shown;
use canal_protocol::service::{Description, DescriptionQuery, Info, ServiceError, description};
use canal_protocol::{Acquire, Wrapper};
use canal_sys::clock;

/// The most calls served in a turn. The others are served in the next turn. Users take turns again
/// there, so a later call of a user with fewer calls may be served first.
pub(crate) const CALLS_PER_TURN: usize = 1024;

/// After this many connections were served, they get their answers, even if other connections of
/// the same turn still wait. One more write of the journal costs less than clients that sleep until
/// a long turn is over: they take a while to wake, and the daemon has nothing to do meanwhile
/// (docs/performance.md).
const ANSWERED_AT_ONCE: usize = 12;

/// About the largest number of parts into which a turn is split: with hundreds of clients, some are
/// awake anyway.
const PARTS_MAX: usize = 4;

impl Server {
    /// Reads a batch, and carries it out.
    ///
    /// # Errors
    /// A decision cannot be recorded. The daemon then has to end without a reply, and the next
    /// daemon continues from the recorded state.
    pub(crate) fn turn(&mut self) -> anyhow::Result<()> {
        // First, because the daemon itself may have been stopped for any length of time.
        self.end_commands(ToEnd::Due);
        self.jobservers.take_returned();
        let batch = Batch::take(self);
        self.carry_out_batch(batch)
    }

    /// Decides on a batch, records the decisions, and answers.
    ///
    /// # Errors
    /// The same as for [`Self::turn`].
    pub(crate) fn carry_out_batch(&mut self, batch: Batch) -> anyhow::Result<()> {
        let Batch { ended, disconnected, leases_over_at } = batch;
        let deaths = !ended.owners.is_empty();
        let descriptors = self.effective.connections(0);
        disconnected.into_iter().for_each(|it| self.disconnect(it));
        for (frame, pidfd) in ended.owners {
            self.observe.history.keep_exit(frame, pidfd, descriptors);
            #[cfg(test)]
            if crate::sim::is_broken(crate::sim::Rule::DeathsAreNoticed) && frame.0 % 8 == 0 {
                continue;
            }
            self.end(frame);
        }
        ended.fifos.into_iter().for_each(|token| self.end_of_writers(token));
        self.decide.hear_engine();
        self.follow()?;
        self.decide.keep_deadline();
        self.settle()?;
        let now = clock::now();
        self.on_time(now)?;
        self.retry_deferred(deaths);
        self.serve(leases_over_at)?;
        self.read_configuration(now);
        self.settle()?;
        while self.share_slots(now) {
            self.settle()?;
        }
        self.inform(now);
        self.serve_reports();
        self.end_searches();
        self.observe.give_metrics(&mut self.decide, self.conns.len());
        self.settle()?;
        #[cfg(test)]
        if crate::sim::is_broken(crate::sim::Rule::RecordsComeFirst) {
            self.conns.flush();
        }
        self.decide.commit()?;
        self.jobservers.deliver();
        self.ask_engine();
        self.conns.flush();
        // The hook's own user may see less: the hook's guard removes the rest.
        let shown = Shown::to(0, self.decide.ledger(), &self.leases, &self.owners);
        self.observe.end_turn(&shown);
        self.decide.ledger_mut().tidy();
        self.look_ahead(now);
        self.set_alarm()?;
        Ok(())
    }

    /// Serves the calls that were read, releases and renewals first. Leases end after the renewals
    /// that arrived in time, even if the daemon could not read these until now.
    fn serve(&mut self, mut leases_over_at: Option<u64>) -> anyhow::Result<()> {
        let mut left = CALLS_PER_TURN;
        loop {
            self.settle()?;
            let mut ready = std::mem::take(&mut self.conns.active);
            let user = |id| self.conns.peek(id).map(|conn| conn.peer.uid);
            let active = in_turns(ready.drain(..).filter_map(|id| Some((user(id)?, id))));
            // The list keeps its memory.
            self.conns.active = ready;
            // However many calls there are, every renewal that was read is served before a lease
            // ends.
            let (over_at, mut all) = (leases_over_at.take(), usize::MAX);
            let most = if over_at.is_some() { &mut all } else { &mut left };
            let goes_first = |call: &Call| call.asked.is(Trait::GoesFirst);
            self.serve_each(&active, most, goes_first)?;
            if let Some(now) = over_at {
                self.end_leases(now);
            }
            self.settle()?;
            if active.is_empty() && self.conns.active.is_empty() {
                return Ok(());
            }
            self.serve_each(&active, &mut left, |_| true)?;
            if left == 0 {
                // Settle now: another turn follows at once only if a connection has more calls.
                self.settle()?;
                // The connections that still have calls go on then.
                let mut listed = BTreeSet::new();
                let rest = active.into_iter().chain(std::mem::take(&mut self.conns.active));
                rest.filter(|it| listed.insert(*it)).for_each(|it| self.conns.activate(it));
                return Ok(());
            }
        }
    }

    /// Serves the queued calls of each connection while `is` selects the next call and calls are
    /// `left` for this turn. Records and answers some connections at a time.
    fn serve_each(
        &mut self,
        active: &[ConnId],
        left: &mut usize,
        is: impl Fn(&Call) -> bool,
    ) -> anyhow::Result<()> {
        let may = |server: &Self, id| {
            let conn = server.conns.peek(id).filter(|conn| conn.is_ready());
            conn.and_then(|conn| conn.calls.front()).is_some_and(&is)
        };
        let at_once = ANSWERED_AT_ONCE.max(active.len() / PARTS_MAX);
        let mut served = 0;
        for id in active {
            if !may(self, *id) {
                continue;
            }
            if served >= at_once && !self.decide.ledger().waits_for_disk() {
                self.decide.commit()?;
                self.conns.flush();
                served = 0;
            }
            while *left > 0 && may(self, *id) {
                *left -= 1;
                self.serve_one(*id);
                self.follow()?;
            }
            served += 1;
        }
        Ok(())
    }
}

/// The input of one turn: calls, closed connections, and deaths.
///
/// Invariant: the batch of a call, or an earlier one, contains each death that the kernel reported
/// before the call was read. So only [`Batch::take`] reads connections, and it takes the deaths
/// after the last read.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The ends of owners and of descendants that the kernel reported.
    pub ended: Ended,
    /// Connections whose peer is gone, or that the daemon closes.
    pub disconnected: Vec<ConnId>,
    /// The time, in milliseconds of CLOCK_BOOTTIME, up to which the daemon has read every renewal
    /// that was sent. Leases that had expired by then end. `None` if no lease may end.
    pub leases_over_at: Option<u64>,
}

impl Batch {
    /// Reads all messages of clients, then takes the deaths that the kernel has reported by then.
    pub(crate) fn take(server: &mut Server) -> Self {
        let begun = clock::boottime_ms();
        let lease_is_over = server.leases.next_end().is_some_and(|end| end <= begun);
        server.conns.read();
        if lease_is_over {
            // The daemon may have been stopped after it woke up, and renewals may have arrived
            // since.
            server.conns.wait(Some(Duration::ZERO));
            server.conns.read();
        }
        let mut accepted = Accepted::default();
        if server.runtime_dir.listener.pauses_until.is_some_and(|until| until <= clock::now()) {
            server.conns.reported.insert(Source::LISTENER);
        }
        if lease_is_over || server.conns.reported.contains(&Source::LISTENER) {
            accepted = server.accept();
        }
        let leases_over_at =
            lease_is_over.then(|| server.conns.accept_backlog.caught_up(begun, accepted)).flatten();
        Self {
            // The deaths are taken after the last read.
            ended: server.owners.take_ended(),
            disconnected: std::mem::take(&mut server.conns.disconnected),
            leases_over_at,
        }
    }
}

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
        // Over an engine, the daemon refuses a request with this wrapper whatever the table says.
        let is_exec = |it: &Acquire| it.wrapper == Some(Wrapper::Exec);
        let is_refused = matches!(asked, Asked::Acquire(acquire) if is_exec(acquire));
        // A host that rests must first read the log.
        let needs_news = !is_refused && !asked.is(Trait::NeedsNoTable);
        if needs_news && !self.decide.is_present() || needs_log && !self.decide.is_member() {
            return self.put_off(id);
        }
        if !is_report {
            return self.serve_next(id);
        }
        // The connection waits for its turn.
        self.conns.set_state(id, CallState::Report(None));
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
            Ok(()) => self.begin(asked, &mut Caller { id, peer, fds }),
        };
        self.carry_out(id, step);
    }

    table_of_calls!(define_begin);

    /// Builds reports while this turn has room and time for them: replies about the whole table,
    /// which may be long.
    ///
    /// Invariant: a report is built only if its client has read all earlier replies, and the limits
    /// on unread replies, for its user and for all users together, leave room for it. Until then
    /// the call waits in its connection, and other calls are served.
    pub(crate) fn serve_reports(&mut self) {
        let begun = clock::now();
        let Some((waiting, stuck)) = self.reports.begin(&self.conns, begun) else { return };
        for id in stuck {
            tracing::debug!("closing a connection that does not read its report");
            self.conns.get(id).into_iter().for_each(Connection::discard_output);
        }
        let mut time = Duration::ZERO;
        for id in waiting {
            if time < REPORT_TIME_PER_TURN && self.reports.may_get(&self.conns, id) {
                self.report_to(id);
                time = clock::now().saturating_duration_since(begun);
            }
        }
        self.reports.end(begun, time);
    }

    fn report_to(&mut self, id: ConnId) {
        let Some(conn) = self.conns.peek(id) else { return };
        let was_full = conn.calls.len() >= CALLS_AHEAD_MAX;
        match self.conns.set_state(id, CallState::Idle) {
            CallState::Report(Some(watched)) => {
                let report = self.status_report(id, &watched);
                self.conns.answer(id, report);
                self.conns.set_state(id, CallState::Watches(watched));
            }
            _ => {
                self.serve_next(id);
                self.conns.activate(id);
                if was_full {
                    self.conns.unheard.push(id);
                }
            }
        }
        self.reports.sent(&self.conns, id);
    }
}

fn describe(query: DescriptionQuery) -> Answer {
    let interface = query.interface;
    match description(&interface) {
        Some(text) => Answer::reply(&Description { description: text.to_owned() }),
        None => Answer::service_error(&ServiceError::InterfaceNotFound { interface }),
    }
}
