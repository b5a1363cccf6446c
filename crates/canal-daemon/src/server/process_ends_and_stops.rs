//! Handles processes of holders and waiters that end or stop, the ends of connections, and waiters
//! of the previous daemon that have not come back.
//!
//! Invariants: a grant that a client has received stays held until the owner and all descendants
//! that keep the hold have ended. A waiter keeps its place while its owner or its asker is stopped
//! or frozen, and blocks no other waiter meanwhile. After that, it has as much time to come back as
//! any other waiter.
//!
//! The kernel does not report that a process has stopped if it is not a child of the daemon. So the
//! daemon checks the waiters ahead of a request that is about to wait or to be refused because of
//! them, and repeats that check from time to time. Each daemon checks only its own host: `-n` on
//! another host can still fail because of a stopped waiter.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::calls::call::{Asked, ConnId};
use crate::calls::in_flight::Completion;
use crate::history::recorder::Cause;
use crate::net::call_state::{Awaiting, CallState, LogWait, PendingCall};
use crate::processes::identify_owner::{PROCESSES_LOOKED_AT_MAX, find};
use crate::server::Server;
use crate::wording::pid_of;
use canal_core::{
    Change, FrameId, HoldState, Owner, ProcessId, Release, Request, RequestId, Token, WaiterState,
    WaiterStatus,
};
use canal_sys::clock;
use canal_sys::process::{Activity, Found, RunState, activity, run_state};

/// How often the daemon checks whether stopped waiters run again, and tries again to watch for the
/// last descendant of a hold.
pub(crate) const PROCESSES_EVERY: Duration = Duration::from_millis(250);

/// How often the daemon searches for stopped waiters that are ahead of other waiters.
pub(crate) const AHEAD_EVERY: Duration = Duration::from_secs(1);

/// The most processes that are checked at once because a request waits behind them.
pub(crate) const AHEAD_LOOKED_AT_MAX: usize = 64;

/// The most waiters that are checked at once for other waiters ahead of them.
const WAITERS_LOOKED_AT_MAX: usize = 256;

/// How long the waiters of the previous daemon may take to come back.
const COME_BACK_TIME: Duration = Duration::from_secs(5);

/// How long they may take in total if their process is busy. On an overloaded machine, it may be
/// ready to run for a long time before it runs.
const COME_BACK_TIME_IF_BUSY: Duration = Duration::from_secs(30);

/// How often the daemon checks whether the process of such a waiter is still busy.
const COME_BACK_EVERY: Duration = Duration::from_secs(1);

impl Server {
    /// Handles the end of a frame's process.
    pub(crate) fn end(&mut self, frame: FrameId) {
        let Some(state) = self.decide.table().frame(frame) else { return };
        let pid = pid_of(&state.owner);
        tracing::debug!(session = %format_args!("s{frame}"), pid, "the owner has ended");
        self.owners.forget(frame);
        self.propose(Change::End { frame });
    }

    /// Handles the end of a frame's process after it was applied to the table: the remaining holds
    /// are kept for its descendants.
    pub(crate) fn ended(&mut self, frame: FrameId) {
        let orphaned = self.decide.table().holds_in(frame).map(|hold| hold.token);
        orphaned.collect::<Vec<_>>().into_iter().for_each(|token| self.end_without_writers(token));
    }

    /// Ends a hold that is kept for descendants if no descendant is left. Otherwise waits for the
    /// last descendant to end.
    pub(crate) fn end_without_writers(&mut self, token: Token) {
        let Some(tag) = self.decide.table().hold(token).map(|hold| hold.asked.tag) else { return };
        if !self.children.await_end(token, tag, &mut self.owners) {
            self.propose(Change::Release(Release::Hold { token, forced: false }));
        }
    }

    /// Handles the loss of the last writer of a hold's FIFO, unless another writer has opened it
    /// since.
    pub(crate) fn end_of_writers(&mut self, token: Token) {
        if self.decide.table().hold(token).is_some_and(|hold| hold.orphaned) {
            self.end_without_writers(token);
        }
    }

    /// Handles a hold that has ended in the table.
    pub(crate) fn hold_ended(&mut self, token: Token) {
        self.children.remove(token, &mut self.owners);
        self.jobservers.hold_ended(token);
        self.decide.hold_ended(token);
    }

    /// Looks again for the processes whose life is uncertain.
    pub(crate) fn verify_again(&mut self) {
        for frame in self.owners.unverified.clone() {
            let Some(state) = self.decide.table().frame(frame) else {
                self.owners.forget(frame);
                continue;
            };
            let Owner::Process(process) = state.owner else { continue };
            match find(process) {
                Found::Same(pidfd) => {
                    if let Err(error) = self.owners.watch(frame, None, pidfd) {
                        tracing::debug!(%error, "still unverified");
                    }
                }
                Found::Gone => self.end(frame),
                Found::Unknown(_) => {}
            }
        }
    }

    /// Handles a client that is gone: withdraws its waiting request, and takes back a grant that it
    /// has not received.
    ///
    /// Invariant: the end of a connection withdraws requests and grants that its client has not
    /// received. A grant that the client has received stays held.
    pub(crate) fn disconnect(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get(id) else { return };
        let untold = conn.untold.take().filter(|_| conn.is_reset || !conn.is_flushed());
        if untold.is_some() {
            conn.discard_output();
        }
        let provisional = std::mem::take(&mut conn.provisional);
        // `Abandon` is queued behind the call that waited, so it was not served.
        let is_abandoned = conn.calls.iter().any(|call| matches!(call.asked, Asked::Abandon(_)));
        let mut gone: Vec<RequestId> = provisional.into_iter().chain(untold).collect();
        // A client that has only stopped sending still gets the answers on which nothing depends.
        let goes_on = match conn.state() {
            CallState::Log(LogWait { what: Awaiting::Change(_, call), .. }) => {
                // The change completes even if its client no longer waits for the answer.
                !matches!(call, PendingCall::Ask(_)) && !conn.is_closing
            }
            CallState::Report(None) | CallState::History | CallState::Configuration => true,
            _ => false,
        };
        let state =
            if goes_on { CallState::Idle } else { self.conns.set_state(id, CallState::Idle) };
        match state {
            #[cfg(test)]
            CallState::Waits(_)
                if crate::sim::is_broken(crate::sim::Rule::DeadWaitersAreWithdrawn) => {}
            CallState::Waits(request) => {
                if is_abandoned {
                    self.observe.history.expect_end(request, Cause::Abandoned);
                }
                gone.push(request);
            }
            CallState::Stores(request, _) => gone.push(request),
            CallState::Log(wait) => {
                if let (Awaiting::Membership, Some(conn)) = (wait.what, self.conns.get(id)) {
                    conn.calls.clear();
                }
            }
            _ => {}
        }
        gone.into_iter().for_each(|request| self.propose(Change::Withdraw { request }));
        self.conns.activate(id);
    }

    /// Suspends a waiter that is ahead of another one, if it is stopped. Returns whether a
    /// suspension of it is in flight, so that deciding again after that is worthwhile.
    pub(crate) fn suspend_ahead(&mut self, ahead: RequestId, then: Completion) -> bool {
        if self.waiters.stopped.contains_key(&ahead) {
            return self.decide.in_flight.has(&Change::Suspend { request: ahead });
        }
        // Only this host's own waiters are known here.
        let waiter = self.waiters.get(ahead);
        let is_stopped = waiter.is_some_and(|waiter| {
            self.is_party_stopped(&waiter.open.asked, self.conns.waiter(ahead))
        });
        if is_stopped {
            self.suspend(ahead, then);
        }
        is_stopped
    }

    /// Suspends the stopped waiters ahead of another one, one after the other.
    pub(crate) fn check_ahead_of(&mut self, behind: RequestId, left: usize) {
        if let Some(ahead) = self.decide.table().first_ahead(behind)
            && let Some(left) = left.checked_sub(1)
        {
            self.suspend_ahead(ahead, Completion::CheckAhead { behind, left });
        }
    }

    /// Suspends a waiter until its process runs again. A grant that was not sent is taken back.
    pub(crate) fn suspend(&mut self, request: RequestId, then: Completion) {
        let waiter = self.decide.table().waiter(request);
        let is_detached = waiter.is_some_and(|it| it.status == WaiterStatus::Detached);
        if is_detached && !self.is_back(request) {
            return self.suspend_detached(request, then);
        }
        // Over an engine, an absent waiter may have been granted briefly.
        self.waiters.stopped.entry(request).or_default();
        self.propose_and(Change::Suspend { request }, then);
    }

    /// Whether the process of the owner of a request, or of its asker, is stopped. A provisional
    /// grant needs both, because the asker confirms it.
    pub(crate) fn is_party_stopped(&self, asked: &Request, conn: Option<ConnId>) -> bool {
        let asker = conn.filter(|_| asked.provisional).and_then(|id| self.conns.peek(id));
        let parties = [pid_of(&asked.owner), asker.map_or(0, |conn| conn.peer.pid)];
        parties.into_iter().any(|pid| pid != 0 && is_stopped(pid))
    }

    /// Checks the waiters ahead of some others, and suspends those that are stopped.
    pub(crate) fn check_ahead_of_waiters(&mut self, now: Instant) {
        let after = self.due.checked_ahead_of.map_or(0, |last| last.0 + 1);
        // Some are waiters of other hosts: only this host can check its own waiters ahead of them.
        let waiting = self.decide.table().waiters_from(RequestId(after));
        let some: Vec<RequestId> = waiting.take(WAITERS_LOOKED_AT_MAX).collect();
        let mut looked_at = BTreeSet::new();
        for request in &some {
            let Some(ahead) = self.decide.table().first_ahead(*request) else { continue };
            self.due.found_behind = true;
            if looked_at.len() < AHEAD_LOOKED_AT_MAX && looked_at.insert(ahead) {
                self.check_ahead_of(*request, AHEAD_LOOKED_AT_MAX);
            }
        }
        let last = some.last().copied().filter(|_| some.len() == WAITERS_LOOKED_AT_MAX);
        self.due.checked_ahead_of = last;
        if last.is_some() || std::mem::take(&mut self.due.found_behind) {
            self.due.check_ahead = Some(now + AHEAD_EVERY);
        }
    }

    /// Resumes the stopped waiters whose process runs again. The client of a waiter from the
    /// previous daemon has to come back first.
    pub(crate) fn look_at_stopped(&mut self, now: Instant) {
        self.suspend_stopped(usize::MAX);
        for (request, back_until) in std::mem::take(&mut self.waiters.stopped) {
            let (waiter, conn) = (self.waiters.get(request), self.conns.waiter(request));
            let Some(waiter) = waiter else { continue };
            if conn.is_some() && self.is_party_stopped(&waiter.open.asked, conn) {
                self.waiters.stopped.insert(request, None);
                continue;
            }
            match conn {
                _ if self.tell_after_all(request) => {}
                Some(_) => self.propose(Change::Resume { request }),
                None => self.look_at_absent(now, request, back_until),
            }
        }
    }

    /// Sends a grant that could not be taken back while its process was stopped, because a part of
    /// it had already been released. Returns whether there is such a grant.
    pub(crate) fn tell_after_all(&mut self, request: RequestId) -> bool {
        let table = self.decide.table();
        let in_part = |hold: &&HoldState| hold.items.len() < hold.asked.items.len();
        let hold = table.hold_of(request).filter(in_part);
        let hold = hold.filter(|_| self.waiters.get(request).is_some());
        hold.inspect(|hold| self.waiters.queue_grant_again(table, hold)).is_some()
    }

    /// Gives the waiters of the previous daemon some time to come back.
    pub(crate) fn await_detached(&mut self) {
        let now = clock::now();
        self.due.come_back = Some(now + COME_BACK_TIME);
        self.due.come_back_if_busy = Some(now + COME_BACK_TIME_IF_BUSY);
        // The others are checked soon: most will be back by then.
        self.suspend_stopped(PROCESSES_LOOKED_AT_MAX);
    }

    /// Withdraws the requests and provisional grants of the previous daemon whose client has not
    /// come back. A client whose process is busy gets more time.
    pub(crate) fn give_up_the_lost(&mut self, now: Instant) {
        self.suspend_stopped(usize::MAX);
        let waiting = self.decide.table().waiters().filter(|waiter| self.is_detached(waiter));
        let waiting: Vec<RequestId> = waiting.map(|waiter| waiter.id).collect();
        let unclaimed = std::mem::take(&mut self.waiters.unclaimed);
        let mut lost: Vec<RequestId> = waiting.into_iter().chain(unclaimed.clone()).collect();
        lost.retain(|request| !self.is_back(*request));
        if self.due.come_back_if_busy.is_some_and(|at| now < at) {
            // Checks only the first of many, and leaves the rest for later.
            let unchecked = lost.split_off(lost.len().min(PROCESSES_LOOKED_AT_MAX));
            let busy = lost.extract_if(.., |request| self.is_busy(*request));
            let late: BTreeSet<RequestId> = busy.chain(unchecked).collect();
            self.waiters.unclaimed = unclaimed.intersection(&late).copied().collect();
            self.due.come_back = (!late.is_empty()).then_some(now + COME_BACK_EVERY);
        }
        if !lost.is_empty() {
            let requests = lost.len();
            tracing::info!(requests, "dropped requests because their clients did not reconnect");
        }
        lost.into_iter().for_each(|request| self.propose(Change::Withdraw { request }));
    }

    /// Whether the process that made a request is busy.
    fn is_busy(&self, request: RequestId) -> bool {
        let asked = self.decide.table().request(request);
        asked.and_then(|it| it.asker.or_else(|| process_of(&it.owner))).is_some_and(|process| {
            matches!(find(process), Found::Same(_)) && activity(process.pid) == Activity::Busy
        })
    }

    /// Suspends the detached waiters whose process is stopped. Checks `at_most` waiters.
    fn suspend_stopped(&mut self, at_most: usize) {
        let waiters = self.decide.table().waiters().filter(|waiter| self.is_detached(waiter));
        let stopped = waiters.take(at_most).filter(|waiter| {
            let lives = lives_of(&waiter.request);
            lives.contains(&Some(RunState::Stopped)) && !lives.contains(&Some(RunState::Gone))
        });
        let stopped: Vec<RequestId> = stopped.map(|waiter| waiter.id).collect();
        let suspend = |request| self.suspend_detached(request, Completion::Nothing);
        stopped.into_iter().for_each(suspend);
    }

    /// Suspends a detached waiter until its process runs again and it comes back.
    fn suspend_detached(&mut self, request: RequestId, then: Completion) {
        tracing::info!(request = request.0, "a waiter is stopped and cannot come back yet");
        self.waiters.stopped.insert(request, None);
        // Only an active waiter can be suspended, so resume it first. If it is granted in between,
        // the suspension takes the grant back before a client receives it.
        self.propose(Change::Resume { request });
        self.propose_and(Change::Suspend { request }, then);
    }

    /// Looks again at a waiter that was found stopped before it came back.
    fn look_at_absent(&mut self, now: Instant, request: RequestId, back_until: Option<Instant>) {
        let Some(waiter) = self.decide.table().waiter(request) else { return };
        match lives_of(&waiter.request) {
            // With the owner, the whole frame has ended.
            [_, Some(RunState::Gone)] => self.end(waiter.frame),
            [Some(RunState::Gone), _] => self.propose(Change::Withdraw { request }),
            lives if lives.contains(&Some(RunState::Stopped)) => {
                self.waiters.stopped.insert(request, None);
            }
            _ => match back_until {
                Some(until) if until <= now => self.propose(Change::Withdraw { request }),
                until => {
                    let until = until.or(Some(now + COME_BACK_TIME));
                    self.waiters.stopped.insert(request, until);
                }
            },
        }
    }

    /// Whether a waiter of this host has not come back, and is not known to be stopped.
    fn is_detached(&self, waiter: &WaiterState) -> bool {
        waiter.status == WaiterStatus::Detached
            && waiter.request.host == self.decide.host()
            && !self.waiters.stopped.contains_key(&waiter.id)
            && !self.is_back(waiter.id)
    }

    /// Whether the client of a waiter is connected. Over an engine, the log may still call such a
    /// waiter detached.
    fn is_back(&self, request: RequestId) -> bool {
        self.conns.waiter(request).is_some()
    }
}

/// The states of the asker and of the owner of a request, as far as the daemon knows. If the
/// request does not name its asker, the owner stands for it. For a lease without an asker, nothing
/// is known.
fn lives_of(asked: &Request) -> [Option<RunState>; 2] {
    [asked.asker, process_of(&asked.owner)].map(|process| {
        // Any other process counts as running.
        process.map(|process| match find(process) {
            Found::Gone => RunState::Gone,
            Found::Same(pidfd) if pidfd.has_ended() => RunState::Gone,
            Found::Same(_) if is_stopped(process.pid) => RunState::Stopped,
            Found::Same(_) | Found::Unknown(_) => RunState::Running,
        })
    })
}

/// The process that owns the lock of a request, if it is one.
fn process_of(owner: &Owner) -> Option<ProcessId> {
    if let Owner::Process(process) = owner { Some(*process) } else { None }
}

/// Whether a process is stopped or frozen.
fn is_stopped(pid: u32) -> bool {
    matches!(run_state(pid), RunState::Stopped | RunState::Frozen)
}
