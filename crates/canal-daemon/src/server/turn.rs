//! The steps of a turn of the daemon, and their order.
//!
//! A turn carries out a [`Batch`] in this order: closed connections and deaths, releases and
//! renewals, requests. Each of them only proposes changes. The turn follows the log after each
//! call, so that the next one sees its changes. It records the decisions, and only then sends the
//! replies. If many clients call at once, some calls are recorded and answered before the next
//! calls are served. A turn reads no connection after it began to serve.
//!
//! Invariant: a turn applies every death that was reported before it, before it answers a call or
//! sends a grant.

use std::io;

use crate::calls::call::Trait;
use crate::calls::conn_id::ConnId;
use crate::limits::CALLS_PER_TURN;
use crate::net::connection::Connection;
use crate::server::Server;
use crate::server::batch::Batch;
use canal_sys::clock;

/// After this many connections were served, they get their answers, even if other connections of
/// the same turn still wait. One more write of the journal costs less than clients that sleep until
/// a long turn is over: they take a while to wake, and the daemon has nothing to do meanwhile
/// (docs/performance.md).
const ANSWERED_AT_ONCE: usize = 12;

/// The most parts, about, into which a turn is split: with hundreds of clients, some are awake
/// anyway.
const PARTS_MAX: usize = 4;

impl Server {
    /// Reads a batch, and carries it out.
    ///
    /// # Errors
    /// A decision cannot be recorded. The daemon then has to end without a reply, and the next
    /// daemon continues from the recorded state.
    pub(crate) fn turn(&mut self) -> anyhow::Result<()> {
        self.stop_in_time();
        self.jobservers.take_returned();
        let batch = Batch::take(self);
        self.carry_out_batch(batch)
    }

    /// Decides on a batch, records the decisions, and answers.
    ///
    /// # Errors
    /// As [`Self::turn`].
    pub(crate) fn carry_out_batch(&mut self, mut batch: Batch) -> anyhow::Result<()> {
        let deaths = !batch.ended.frames.is_empty();
        for (frame, pidfd) in std::mem::take(&mut batch.ended.pidfds) {
            let descriptors = self.limits.connections(0);
            self.history.keep_exit(frame, pidfd, descriptors);
        }
        for disconnected in std::mem::take(&mut batch.disconnected) {
            self.disconnect(disconnected);
        }
        for frame in std::mem::take(&mut batch.ended.frames) {
            #[cfg(test)]
            if crate::sim::is_broken(crate::sim::Rule::DeathsAreNoticed) && frame.0 % 8 == 0 {
                continue;
            }
            self.end(frame);
        }
        for token in std::mem::take(&mut batch.ended.fifos) {
            self.end_of_writers(token);
        }
        self.follow();
        self.follow_engine()?;
        self.settle();
        let now = clock::now();
        self.on_time(now);
        self.reload_if_asked();
        self.end_readings();
        self.retry_deferred(deaths);
        self.serve(batch.leases_over_at)?;
        while self.share_slots(now) {
            self.settle();
        }
        self.inform(now);
        self.serve_reports();
        self.end_searches();
        self.give_metrics();
        self.settle();
        #[cfg(test)]
        if crate::sim::is_broken(crate::sim::Rule::RecordsComeFirst) {
            self.conns.flush();
        }
        self.ledger.commit()?;
        self.jobservers.deliver();
        self.ask_engine();
        self.conns.flush();
        self.tell_hooks();
        self.history.hand_over();
        self.history.note_open(now);
        self.ledger.tidy();
        self.look_ahead(now);
        self.set_alarm()?;
        Ok(())
    }

    /// Serves the calls that were read, releases and renewals first. Leases end after the renewals
    /// that arrived in time, even if the daemon could not read these until now.
    fn serve(&mut self, mut leases_over_at: Option<u64>) -> io::Result<()> {
        let mut left = CALLS_PER_TURN;
        loop {
            self.settle();
            let active = self.conns.take_active();
            let active = self.in_turns(active);
            if let Some(now) = leases_over_at.take() {
                // However many calls there are, every renewal that was read is served before a
                // lease ends.
                let mut all = usize::MAX;
                self.serve_each(&active, &mut all, Self::next_goes_first)?;
                self.end_leases(now);
            } else {
                self.serve_each(&active, &mut left, Self::next_goes_first)?;
            }
            self.settle();
            if active.is_empty() && !self.conns.has_active() {
                return Ok(());
            }
            let is_ready =
                |server: &Self, id| server.conns.peek(id).is_some_and(Connection::is_ready);
            self.serve_each(&active, &mut left, is_ready)?;
            if left == 0 {
                // Settle now: another turn follows at once only if a connection has more calls.
                self.settle();
                self.leave_for_next_turn(&active);
                return Ok(());
            }
            self.conns.reuse(active);
        }
    }

    /// Serves the queued calls of each connection while `may` allows the next call and calls are
    /// `left` for this turn. Records and answers some connections at a time.
    fn serve_each(
        &mut self,
        active: &[ConnId],
        left: &mut usize,
        may: impl Fn(&Self, ConnId) -> bool,
    ) -> io::Result<()> {
        let at_once = ANSWERED_AT_ONCE.max(active.len() / PARTS_MAX);
        let mut served = 0;
        for id in active {
            if !may(self, *id) {
                continue;
            }
            if served >= at_once && !self.ledger.waits_for_disk() {
                self.ledger.commit()?;
                self.conns.flush();
                served = 0;
            }
            while *left > 0 && may(self, *id) {
                *left -= 1;
                self.serve_one(*id);
                self.follow();
            }
            served += 1;
        }
        Ok(())
    }

    fn next_goes_first(&self, id: ConnId) -> bool {
        let conn = self.conns.peek(id).filter(|conn| conn.is_ready());
        conn.and_then(|conn| conn.calls.front()).is_some_and(|call| call.asked.is(Trait::GoesFirst))
    }
}
