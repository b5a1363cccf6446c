//! Handles waiters whose process is stopped or frozen: they keep their place, and block no other
//! waiter.
//!
//! The kernel does not report that a process has stopped if it is not a child of the daemon. So the
//! daemon checks the waiters ahead of a request that is about to wait or to be refused because of
//! them, and repeats that check from time to time.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::core::{Change, Request, RequestId, Table, WaiterStatus};
use crate::daemon::calls::conn_id::ConnId;
use crate::daemon::limits::{AHEAD_EVERY, AHEAD_LOOKED_AT_MAX, WAITERS_LOOKED_AT_MAX};
use crate::daemon::server::Server;
use crate::daemon::waiters::look_ahead::is_stopped;
use crate::daemon::wording::text::pid_of;

impl Server {
    /// Suspends waiters while the `first` of those that block is stopped. Returns whether there was
    /// one, so that deciding again is worthwhile.
    pub(crate) fn suspend_ahead(&mut self, first: impl Fn(&Table) -> Option<RequestId>) -> bool {
        let mut found = false;
        for _ in 0..AHEAD_LOOKED_AT_MAX {
            let Some(ahead) = first(&self.ledger.table) else { return found };
            if self.waiters.is_suspended(ahead) || self.waiters.is_absent(ahead) {
                // Over an engine, the log applies the proposed suspension before anything proposed
                // now. On one machine, it is in the table already, and deciding again would change
                // nothing.
                return found || self.cluster.is_some();
            }
            let Some(pid) = self.stopped_process(ahead) else { return found };
            self.suspend(ahead, pid);
            found = true;
        }
        found
    }

    /// Suspends a waiter until its process runs again. A grant that was not sent is taken back.
    pub(crate) fn suspend(&mut self, request: RequestId, pid: u32) {
        let waiter = self.ledger.table.waiter(request);
        let is_detached = waiter.is_some_and(|it| it.status == WaiterStatus::Detached);
        if is_detached && !self.is_back(request) {
            return self.suspend_detached(request);
        }
        self.waiters.suspend(request, pid);
        self.propose(Change::Suspend { request });
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
            self.look_ahead_of(*request, &mut looked_at);
        }
        let last = some.last().copied().filter(|_| some.len() == WAITERS_LOOKED_AT_MAX);
        let is_whole = last.is_none();
        self.due.look_ahead.last = last;
        if !is_whole || std::mem::take(&mut self.due.look_ahead.behind) {
            self.due.look_ahead.due = Some(now + AHEAD_EVERY);
        }
    }

    fn look_ahead_of(&mut self, request: RequestId, looked_at: &mut BTreeSet<RequestId>) {
        while let Some(ahead) = self.ledger.table.first_ahead(request) {
            self.due.look_ahead.behind = true;
            if self.waiters.is_suspended(ahead) || looked_at.len() >= AHEAD_LOOKED_AT_MAX {
                return;
            }
            // It was checked already and is still ahead, so it is not stopped.
            if !looked_at.insert(ahead) {
                return;
            }
            let Some(pid) = self.stopped_process(ahead) else { return };
            self.suspend(ahead, pid);
        }
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
