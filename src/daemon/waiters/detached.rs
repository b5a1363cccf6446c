//! The waiters of the daemon before this one that have not come back.
//!
//! Invariant: a waiter keeps its place as long as its owner or the process that asked is stopped or
//! frozen, and after that for as long as any other waiter has to come back. While it is stopped it bars nobody.

use std::time::Instant;

use crate::core::{
    Change, Owner, ProcessId, Request, RequestId, WaiterState, WaiterStatus, Withdrawal,
};
use crate::daemon::calls::completion::Completion;
use crate::daemon::limits::{COME_BACK_TIME, PROCESSES_LOOKED_AT_MAX, STOPPED_EVERY};
use crate::daemon::processes::owners::find;
use crate::daemon::server::Server;
use crate::sys::process::{Found, RunState, run_state};

/// How a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Runs,
    Stopped,
    Gone,
}

/// What is to be expected of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Return {
    /// Its asker and its owner run, as far as they are known.
    Possible,
    /// Its asker or its owner is stopped.
    Later,
    /// Its asker has ended.
    Never,
    /// Its owner has ended, and with it the whole frame.
    OwnerEnded,
}

impl Server {
    /// Gives the waiters of the daemon before this one some time to come back.
    pub(crate) fn await_detached(&mut self) {
        let now = Instant::now();
        self.due.come_back = Some(now + COME_BACK_TIME);
        // All others are looked at soon: most are back by then.
        self.suspend_stopped(PROCESSES_LOOKED_AT_MAX);
        self.due.detached = Some(now + STOPPED_EVERY);
    }

    /// Looks at those that have not come back.
    pub(crate) fn look_at_detached(&mut self, now: Instant) {
        self.suspend_stopped(usize::MAX);
        for (request, back_until) in self.waiters.take_absent() {
            self.look_at_away(now, request, back_until);
        }
        let goes_on = self.due.come_back.is_some() || self.waiters.has_absent();
        self.due.detached = goes_on.then_some(now + STOPPED_EVERY);
    }

    /// Withdraws what the daemon before this one had taken on and nobody asked for again.
    pub(crate) fn give_up_the_lost(&mut self) {
        self.suspend_stopped(usize::MAX);
        let waiting = self.ledger.table.waiters().filter(|waiter| self.is_detached(waiter));
        let waiting: Vec<RequestId> = waiting.map(|waiter| waiter.id).collect();
        let unclaimed = self.waiters.take_unclaimed();
        let mut lost: Vec<RequestId> = waiting.into_iter().chain(unclaimed).collect();
        // Over an engine the log may still say so of those who are back.
        let is_back = |id: &RequestId| self.waiters.get(*id).is_some_and(|it| it.conn.is_some());
        lost.retain(|request| !is_back(request));
        if !lost.is_empty() {
            tracing::info!(requests = lost.len(), "given up: nobody came back for them");
        }
        for request in lost {
            self.give_up(request);
        }
    }

    fn give_up(&mut self, request: RequestId) {
        let why = Withdrawal::Lost;
        self.propose(Change::Withdraw { request, why }, Completion::Nothing);
    }

    /// Suspends the detached waiters whose process is stopped. Looks at `at_most` processes.
    fn suspend_stopped(&mut self, at_most: usize) {
        let waiters = self.ledger.table.waiters().filter(|waiter| self.is_detached(waiter));
        let stopped: Vec<RequestId> = waiters
            .take(at_most)
            .filter(|waiter| return_of(&waiter.request) == Return::Later)
            .map(|waiter| waiter.id)
            .collect();
        for request in stopped {
            tracing::info!(request = request.0, "a waiter is stopped and cannot come back yet");
            self.waiters.set_absent(request, None);
            // Only one that takes part can be suspended. What it may be granted in between is taken
            // back before anybody is told.
            self.propose(Change::Resume { request }, Completion::Nothing);
            self.propose(Change::Suspend { request }, Completion::Nothing);
        }
    }

    fn look_at_away(&mut self, now: Instant, request: RequestId, back_until: Option<Instant>) {
        let is_back = self.waiters.get(request).is_none_or(|waiter| waiter.conn.is_some());
        let Some(waiter) = self.ledger.table.waiter(request).filter(|_| !is_back) else { return };
        // Over an engine it can have been granted for a moment, and was seen to be stopped then.
        self.waiters.resume(request);
        match return_of(&waiter.request) {
            Return::Later => self.waiters.set_absent(request, None),
            Return::Never => self.give_up(request),
            Return::OwnerEnded => self.end(waiter.frame),
            Return::Possible => match back_until {
                Some(until) if until <= now => self.give_up(request),
                until => self.waiters.set_absent(request, until.or(Some(now + COME_BACK_TIME))),
            },
        }
    }

    /// Whether it is one of ours that has not come back, and is not known to be stopped.
    fn is_detached(&self, waiter: &WaiterState) -> bool {
        waiter.status == WaiterStatus::Detached
            && waiter.request.host == self.ledger.host
            && !self.waiters.is_absent(waiter.id)
    }
}

/// Whether a waiter can come back. Entries of an earlier version do not name the asker: the owner
/// stands for it, and nothing is known of a lease.
fn return_of(asked: &Request) -> Return {
    let owner = match asked.owner {
        Owner::Process(process) => Some(life_of(process)),
        Owner::Lease(_) => None,
    };
    if owner == Some(Life::Gone) {
        return Return::OwnerEnded;
    }
    match (asked.asker.map(life_of), owner) {
        (Some(Life::Gone), _) => Return::Never,
        (Some(Life::Stopped), _) | (_, Some(Life::Stopped)) => Return::Later,
        _ => Return::Possible,
    }
}

fn life_of(process: ProcessId) -> Life {
    match find(process) {
        Found::Gone => Life::Gone,
        Found::Same(pidfd) if pidfd.has_ended() => Life::Gone,
        Found::Same(_) => match run_state(process.pid) {
            RunState::Stopped | RunState::Frozen => Life::Stopped,
            RunState::Running | RunState::Exiting | RunState::Gone => Life::Runs,
        },
        Found::Unknown(_) => Life::Runs,
    }
}
