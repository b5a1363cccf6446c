//! Handles waiters whose process is stopped or frozen: they keep their place, and block no other
//! waiter.
//!
//! The kernel does not report that a process has stopped if it is not a child of the daemon. So the
//! daemon checks the waiters ahead of a request that is about to wait or to be refused because of
//! them, and repeats that check from time to time.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::calls::completion::Completion;
use crate::calls::conn_id::ConnId;
use crate::limits::{AHEAD_EVERY, AHEAD_LOOKED_AT_MAX, WAITERS_LOOKED_AT_MAX};
use crate::server::Server;
use crate::waiters::look_ahead::is_stopped;
use crate::waiters::regrant::granted;
use crate::wording::text::pid_of;
use canal_core::{Change, HoldState, Request, RequestId, WaiterStatus};
use canal_sys::clock;

impl Server {
    /// Suspends a waiter that is ahead of another one, if it is stopped. Returns whether a
    /// suspension of it is in flight, so that deciding again after that is worthwhile.
    pub(crate) fn suspend_ahead(&mut self, ahead: RequestId, then: Completion) -> bool {
        if self.waiters.is_suspended(ahead) || self.waiters.is_absent(ahead) {
            return self.is_being_suspended(ahead);
        }
        let Some(pid) = self.stopped_process(ahead) else { return false };
        self.suspend_and(ahead, pid, then);
        true
    }

    /// Suspends the waiters ahead of another one that are stopped, one after the other.
    pub(crate) fn look_ahead_of(&mut self, behind: RequestId, left: usize) {
        if let Some(ahead) = self.ledger.table.first_ahead(behind)
            && let Some(left) = left.checked_sub(1)
        {
            self.suspend_ahead(ahead, Completion::LookAhead { behind, left });
        }
    }

    /// Suspends a waiter until its process runs again. A grant that was not sent is taken back.
    pub(crate) fn suspend(&mut self, request: RequestId, pid: u32) {
        self.suspend_and(request, pid, Completion::Nothing);
    }

    fn suspend_and(&mut self, request: RequestId, pid: u32, then: Completion) {
        let waiter = self.ledger.table.waiter(request);
        let is_detached = waiter.is_some_and(|it| it.status == WaiterStatus::Detached);
        if is_detached && !self.is_back(request) {
            return self.suspend_detached(request, then);
        }
        self.waiters.suspend(request, pid);
        self.propose_and(Change::Suspend { request }, then);
    }

    /// The process of a waiter of this host, if it is stopped.
    fn stopped_process(&self, request: RequestId) -> Option<u32> {
        let waiter = self.waiters.get(request)?;
        self.stopped_party(&waiter.asked.request, waiter.conn)
    }

    /// The pid of the owner of a request, or of its asker, if that process is stopped. A
    /// provisional grant needs both, because the asker confirms it.
    pub(crate) fn stopped_party(&self, asked: &Request, conn: Option<ConnId>) -> Option<u32> {
        let asker = conn.filter(|_| asked.provisional).and_then(|id| self.conns.peek(id));
        let parties = [pid_of(&asked.owner), asker.map_or(0, |conn| conn.peer.pid)];
        parties.into_iter().find(|pid| *pid != 0 && is_stopped(*pid))
    }

    /// Checks the waiters ahead of some others, and suspends those that are stopped.
    pub(crate) fn look_ahead_of_waiters(&mut self, now: Instant) {
        let after = self.due.look_ahead.last.map_or(0, |last| last.0 + 1);
        // Some are waiters of other hosts: only this host can check its own waiters ahead of them.
        let waiting = self.ledger.table.waiters_from(RequestId(after));
        let some: Vec<RequestId> = waiting.take(WAITERS_LOOKED_AT_MAX).collect();
        let mut looked_at = BTreeSet::new();
        for request in &some {
            let Some(ahead) = self.ledger.table.first_ahead(*request) else { continue };
            self.due.look_ahead.behind = true;
            if looked_at.len() < AHEAD_LOOKED_AT_MAX && looked_at.insert(ahead) {
                self.look_ahead_of(*request, AHEAD_LOOKED_AT_MAX);
            }
        }
        let last = some.last().copied().filter(|_| some.len() == WAITERS_LOOKED_AT_MAX);
        let is_whole = last.is_none();
        self.due.look_ahead.last = last;
        if !is_whole || std::mem::take(&mut self.due.look_ahead.behind) {
            self.due.look_ahead.due = Some(now + AHEAD_EVERY);
        }
    }

    /// Resumes the suspended waiters whose process runs again.
    pub(crate) fn look_at_stopped(&mut self) {
        let running = self.waiters.suspended().filter(|(_, pid)| !is_stopped(*pid));
        let running: Vec<RequestId> = running.map(|(request, _)| request).collect();
        for request in running {
            self.waiters.resume(request);
            if self.tell_after_all(request) {
                continue;
            }
            // The client of a waiter from the previous daemon has to come back first.
            if self.waiters.get(request).is_some_and(|waiter| waiter.conn.is_none()) {
                self.waiters.set_absent(request, None);
                self.due.detached = Some(clock::now());
                continue;
            }
            self.propose(Change::Resume { request });
        }
    }

    /// Sends a grant that could not be taken back while its process was stopped, because a part of
    /// it had already been released. Returns whether there is such a grant.
    pub(crate) fn tell_after_all(&mut self, request: RequestId) -> bool {
        let table = &self.ledger.table;
        let in_part = |hold: &&HoldState| hold.items.len() < hold.asked.items.len();
        let hold = table.hold_of(request).filter(in_part);
        let Some(hold) = hold.filter(|_| self.waiters.get(request).is_some()) else { return false };
        let granted = granted(table, hold);
        self.waiters.queue_grant_once(granted);
        true
    }

    /// Schedules a check if a waiter may now be behind another.
    pub(crate) fn schedule_look_ahead(&mut self, now: Instant) {
        if self.ledger.table.waiting() > 1
            && self.waiters.len() > 0
            && self.due.look_ahead.due.is_none()
        {
            self.due.look_ahead.due = Some(now + AHEAD_EVERY);
        }
    }
}
