//! Ends calls that wait: with a grant, with a refusal, or because their time is over.

use crate::calls::pending_acquire::PendingAcquire;
use crate::history::queue::Answer;
use crate::net::call_state::{CallState, Subject};
use crate::net::connection::Connection;
use crate::net::unread_reports::Unread;
use crate::server::Server;
use crate::server::dispatch::step::Step;
use canal_core::{Change, Withdrawal};
use canal_sys::clock;

impl Server {
    /// Follows the log, checks all waiters that were granted something, and sends their grants.
    /// Repeats this until nothing follows from it.
    pub(crate) fn settle(&mut self) {
        loop {
            self.follow();
            // A grant made while this host cannot renew is sent once it can renew again, or never.
            if self.waiters.has_grants() && self.is_sure() {
                while let Some(granted) = self.waiters.next_grant() {
                    #[cfg(test)]
                    if crate::sim::is_broken(crate::sim::Rule::GrantsAreTold)
                        && granted.token.0 % 4 == 0
                    {
                        continue;
                    }
                    if let Some((id, step)) = self.offer(&granted) {
                        self.carry_out(id, step);
                    }
                    self.follow();
                }
            }
            let unsynced = self.conns.end_waits(Subject::Disk, |state| match state {
                CallState::Stores(lease) => Ok(lease),
                _ => Err(state),
            });
            if unsynced.is_empty() {
                return;
            }
            // All leases that wait for this become durable together.
            let stored = self.ledger.keep_leases();
            for (id, lease) in unsynced {
                let step = self.step_of_lease(id, *lease, &stored);
                self.carry_out(id, step);
            }
        }
    }

    /// Ends the waits whose time is over.
    pub(crate) fn end_waits(&mut self) {
        if self.waiters.next_end().is_none() {
            return;
        }
        let now = clock::boottime_ms();
        while let Some(request) = self.waiters.over(now) {
            let id = self.waiters.remove(request).and_then(|waiter| waiter.conn);
            self.history.times_out(request);
            if let Some(id) = id
                && let Some(viewer) = self.conns.peek(id).map(|conn| conn.peer.uid)
            {
                let failure = self.timeout_failure(request, viewer);
                self.carry_out(id, Err(failure));
            }
            // The request may be granted before its withdrawal is in the log.
            self.propose(Change::Withdraw { request, why: Withdrawal::Cancelled });
            // This may grant another request whose wait is over now.
            self.settle();
        }
    }

    /// Answers the clients whose searches of the history have finished.
    pub(crate) fn end_searches(&mut self) {
        for (id, found) in self.history.take_found() {
            let waits = |conn: &&Connection| matches!(conn.state(), CallState::History);
            let Some(conn) = self.conns.peek(id).filter(waits) else { continue };
            let uid = conn.peer.uid;
            let step = self.history_answer(uid, &found);
            self.carry_out(id, Ok(step));
            let left = self.conns.peek(id).map_or(0, |conn| conn.unsent());
            if left > 0 {
                self.reports.unread.push(Unread { id, uid, left, since: clock::now() });
            }
        }
    }

    /// The result of a search, as a user may see it.
    fn history_answer(&self, viewer: u32, answer: &Answer) -> Step {
        match answer {
            Answer::Records(found) => self.history_page(viewer, found),
            Answer::Counts(counts) => Step::reply(&self.stats(counts)),
        }
    }

    /// Asks for deferred requests again: all of them after a death, otherwise those whose time is
    /// over.
    pub(crate) fn retry_deferred(&mut self, deaths: bool) {
        let now = clock::now();
        let is_due = |it: &PendingAcquire| deaths || it.deferred_until.is_none_or(|at| at <= now);
        let deferred = self.conns.end_waits(Subject::Death, |state| match state {
            CallState::Deferred(newcomer) if is_due(&newcomer) => Ok(newcomer),
            _ => Err(state),
        });
        for (_, newcomer) in deferred {
            self.ask_again(*newcomer);
        }
    }

    /// Ends the calls whose configuration was read, or was not read in time.
    pub(crate) fn end_readings(&mut self) {
        for (id, step) in self.configuration_read() {
            self.carry_out(id, step);
        }
    }
}
