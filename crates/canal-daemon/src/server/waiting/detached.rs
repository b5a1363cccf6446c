//! Handles the waiters of the previous daemon that have not come back.
//!
//! Invariant: a waiter keeps its place while its owner or its asker is stopped or frozen. After
//! that, it has as much time to come back as any other waiter. While it is stopped, it blocks no
//! other waiter.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::calls::completion::Completion;
use crate::limits::{
    COME_BACK_EVERY, COME_BACK_TIME, COME_BACK_TIME_IF_BUSY, PROCESSES_LOOKED_AT_MAX, STOPPED_EVERY,
};
use crate::processes::owners::find;
use crate::server::Server;
use canal_core::{
    Change, Owner, ProcessId, Request, RequestId, WaiterState, WaiterStatus, Withdrawal,
};
use canal_sys::clock;
use canal_sys::process::{Activity, Found, RunState, activity, run_state};

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Runs,
    Stopped,
    Gone,
}

/// Whether a waiter can come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Return {
    /// Its asker and its owner run, as far as the daemon knows.
    Possible,
    /// Its asker or its owner is stopped.
    Later,
    /// Its asker has ended.
    Never,
    /// Its owner has ended, and with it the whole frame.
    OwnerEnded,
}

impl Server {
    /// Gives the waiters of the previous daemon some time to come back.
    pub(crate) fn await_detached(&mut self) {
        let now = clock::now();
        self.due.come_back = Some(now + COME_BACK_TIME);
        self.due.come_back_if_busy = Some(now + COME_BACK_TIME_IF_BUSY);
        // The others are checked soon: most will be back by then.
        self.suspend_stopped(PROCESSES_LOOKED_AT_MAX);
        self.due.detached = Some(now + STOPPED_EVERY);
    }

    /// Checks the waiters that have not come back.
    pub(crate) fn look_at_detached(&mut self, now: Instant) {
        self.suspend_stopped(usize::MAX);
        for (request, back_until) in self.waiters.take_absent() {
            self.look_at_away(now, request, back_until);
        }
        let goes_on = self.due.come_back.is_some() || self.waiters.has_absent();
        self.due.detached = goes_on.then_some(now + STOPPED_EVERY);
    }

    /// Withdraws the requests and provisional grants of the previous daemon whose client has not
    /// come back. A client whose process is busy gets more time.
    pub(crate) fn give_up_the_lost(&mut self, now: Instant) {
        self.suspend_stopped(usize::MAX);
        let waiting = self.ledger.table.waiters().filter(|waiter| self.is_detached(waiter));
        let waiting: Vec<RequestId> = waiting.map(|waiter| waiter.id).collect();
        let unclaimed = self.waiters.take_unclaimed();
        let mut lost: Vec<RequestId> = waiting.into_iter().chain(unclaimed.clone()).collect();
        lost.retain(|request| !self.is_back(*request));
        if self.due.come_back_if_busy.is_some_and(|at| now < at) {
            let late = self.take_late(&mut lost);
            self.waiters.expect_claims(unclaimed.intersection(&late).copied());
            self.due.come_back = (!late.is_empty()).then_some(now + COME_BACK_EVERY);
        }
        if !lost.is_empty() {
            tracing::info!(
                requests = lost.len(),
                "gave requests up because their clients did not come back"
            );
        }
        for request in lost {
            self.give_up(request);
        }
    }

    /// Extracts the requests whose client may still come back, because its process is busy. Checks
    /// only the first of many, and leaves the rest for later.
    fn take_late(&self, lost: &mut Vec<RequestId>) -> BTreeSet<RequestId> {
        let unchecked = lost.split_off(lost.len().min(PROCESSES_LOOKED_AT_MAX));
        let busy = lost.extract_if(.., |request| self.is_busy(*request));
        busy.chain(unchecked).collect()
    }

    /// Whether the process that made a request is busy.
    fn is_busy(&self, request: RequestId) -> bool {
        let table = &self.ledger.table;
        let waits = table.waiter(request).map(|waiter| &waiter.request);
        let asked = waits.or_else(|| table.hold_of(request).map(|hold| &hold.asked));
        let owner = |asked: &Request| match asked.owner {
            Owner::Process(process) => Some(process),
            Owner::Lease(_) | Owner::Jobserver(_) => None,
        };
        let asker = asked.and_then(|asked| asked.asker.or_else(|| owner(asked)));
        asker.is_some_and(|process| {
            matches!(find(process), Found::Same(_)) && activity(process.pid) == Activity::Busy
        })
    }

    fn give_up(&mut self, request: RequestId) {
        let why = Withdrawal::Lost;
        self.propose(Change::Withdraw { request, why });
    }

    /// Suspends the detached waiters whose process is stopped. Checks `at_most` waiters.
    fn suspend_stopped(&mut self, at_most: usize) {
        let waiters = self.ledger.table.waiters().filter(|waiter| self.is_detached(waiter));
        let stopped: Vec<RequestId> = waiters
            .take(at_most)
            .filter(|waiter| return_of(&waiter.request) == Return::Later)
            .map(|waiter| waiter.id)
            .collect();
        for request in stopped {
            self.suspend_detached(request, Completion::Nothing);
        }
    }

    /// Suspends a detached waiter until its process runs again and it comes back.
    pub(crate) fn suspend_detached(&mut self, request: RequestId, then: Completion) {
        tracing::info!(request = request.0, "a waiter is stopped and cannot come back yet");
        self.waiters.set_absent(request, None);
        // Only an active waiter can be suspended, so resume it first. If it is granted in between,
        // the suspension takes the grant back before a client receives it.
        self.propose(Change::Resume { request });
        self.propose_and(Change::Suspend { request }, then);
    }

    fn look_at_away(&mut self, now: Instant, request: RequestId, back_until: Option<Instant>) {
        let is_back = self.waiters.get(request).is_none_or(|waiter| waiter.conn.is_some());
        let Some(waiter) = self.ledger.table.waiter(request).filter(|_| !is_back) else { return };
        // Over an engine, the request may have been granted briefly, and then suspended because its
        // process was stopped.
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

    /// Whether a waiter of this host has not come back, and is not known to be stopped.
    fn is_detached(&self, waiter: &WaiterState) -> bool {
        waiter.status == WaiterStatus::Detached
            && waiter.request.host == self.ledger.host
            && !self.waiters.is_absent(waiter.id)
            && !self.is_back(waiter.id)
    }

    /// Whether the client of a waiter is connected. Over an engine, the log may still call such a
    /// waiter detached.
    pub(crate) fn is_back(&self, request: RequestId) -> bool {
        self.waiters.get(request).is_some_and(|waiter| waiter.conn.is_some())
    }
}

/// Whether a waiter can come back. If the request does not name its asker, the owner stands for it.
/// For a lease without an asker, nothing is known.
fn return_of(asked: &Request) -> Return {
    let owner = match asked.owner {
        Owner::Process(process) => Some(life_of(process)),
        Owner::Lease(_) | Owner::Jobserver(_) => None,
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
