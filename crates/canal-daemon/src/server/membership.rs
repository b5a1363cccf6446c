//! This host as a member of the table that many hosts share: joins it, leaves it, ends commands
//! in time, and keeps the calls that wait for it.
//! [`Cluster`] owns the state.

use std::collections::BTreeSet;

use crate::calls::call::ConnId;
use crate::cluster::membership::Cluster;
use crate::host::LostWhy;
use crate::net::call_state::{Awaiting, CallState, LogWait, PendingAcquire, PendingCall, Subject};
use crate::processes::identity::find;
use crate::server::Server;
use crate::server::call_step::ended_unseen;
use crate::store::ledger::NO_HOST;
use crate::store::recover::token_by_clock;
use crate::waiters::leases::Leases;
use crate::waiters::waiting::Waiter;
use crate::wording;
use canal_core::{Change, FrameId, Globals, HostId, Owner, ProcessId, RequestId};
use canal_history::Ending;
use canal_protocol::{Failure, Progress};
use canal_sys::clock;
use canal_sys::process::Found;

/// Takes over what an earlier daemon left, joins the table that many hosts share, and leaves it.
///
/// Invariant: this host verifies everything that it takes over from an earlier daemon or
/// incarnation before it asks for anything new.
impl Server {
    /// Handles the event that this host has become a member under this id.
    pub(crate) fn joined(&mut self, host: HostId, adopted: Option<HostId>) {
        tracing::info!(host = host.0, adopted = adopted.map(|host| host.0), "joined");
        self.due.changed = true;
        if let Err(error) = self.decide.begin_membership(host, &self.conns) {
            tracing::error!(%error, "cannot create a deadline page; the daemon is exiting");
            self.stopping = true;
            return;
        }
        if let Some(words) = self.decide.recovery_words() {
            tracing::warn!("{words}");
        }
        self.take_over();
        // Requests that the table lacks ended before the earlier incarnation was adopted, or with
        // it.
        let ending = if adopted.is_some() { Ending::Ended } else { Ending::Lost };
        self.observe.history.take_in_left(self.decide.table(), &ending);
        self.follow_configuration();
        self.ask_for_those_waiting();
        self.resume_put_off();
    }

    /// Takes over this host's part of the table: the requests and holds of an earlier daemon or an
    /// adopted incarnation, and leases of hosts that are gone.
    pub(crate) fn take_over(&mut self) {
        let (table, host) = (self.decide.table(), self.decide.host());
        self.waiters.follow_table(table, host);
        self.leases.follow(table, host);
        self.observe.follow(self.decide.ledger());
        let frames: Vec<_> = table.frames_of_host(host).collect();
        let enclosing: BTreeSet<FrameId> =
            table.frames().filter_map(|frame| frame.parent).collect();
        let own = table.holds().filter(|hold| frames.binary_search(&hold.frame).is_ok());
        let own: Vec<_> = own.cloned().collect();
        let provisional = own.iter().filter(|hold| hold.provisional);
        self.waiters.unclaimed = provisional.map(|hold| hold.request).collect();
        // Until these are dead, this host asks for nothing and sends no grant.
        let now = clock::boottime_ms();
        self.decide.stop_unknown(&self.owners, now);
        self.end_lost(now);
        self.decide.take_over(&own);
        for id in frames {
            let Some(frame) = self.decide.table().frame(id).filter(|frame| !frame.ended) else {
                continue;
            };
            if let Owner::Process(process) = frame.owner {
                self.prove(id, process, enclosing.contains(&id));
            }
        }
        for hold in own.iter().filter(|hold| hold.asked.children) {
            if let Err(error) = self.children.take_over(hold.token, hold.asked.tag) {
                tracing::warn!(%error, token = hold.token.0, "cannot open its FIFO");
            }
        }
        self.children.sweep();
        self.await_orphans();
        if self.waiters.expects_any() {
            self.await_detached();
        }
    }

    fn prove(&mut self, frame: FrameId, process: ProcessId, encloses: bool) {
        match find(process) {
            Found::Same(pidfd) if !pidfd.has_ended() => {
                // A process that only waits is identified by its connection when it reconnects.
                let holds = self.decide.table().holds_in(frame).next().is_some();
                if (encloses || holds)
                    && let Err(error) = self.owners.watch(frame, None, pidfd)
                {
                    tracing::warn!(%error, pid = process.pid, "cannot watch an owner");
                    self.owners.unverified.insert(frame);
                }
            }
            Found::Same(_) | Found::Gone => {
                tracing::info!(pid = process.pid, session = %format_args!("s{frame}"),
                               "a process ended while no daemon was running");
                self.observe.history.ends_unseen(frame);
                self.end(frame);
            }
            Found::Unknown(error) => {
                let pid = process.pid;
                tracing::warn!(pid, %error, "cannot determine whether it is still running");
                self.owners.unverified.insert(frame);
            }
        }
    }

    /// Proposes the settings and the policy of the configuration and the state file. In a shared
    /// table, only where no host has stored another setting: the hosts' configurations may differ.
    pub(crate) fn follow_configuration(&mut self) {
        let table = self.decide.table();
        // The log is new. Its tokens must be greater than those of any earlier journal.
        if table.globals().next_token == Globals::default().next_token {
            let floor = Change::Floor { token: token_by_clock() };
            self.propose(floor);
        }
        let mut notes = Vec::new();
        let settings = self.settings_to_change(&self.effective.config, &mut notes);
        notes.iter().for_each(|note| tracing::warn!("{note}"));
        self.propose_settings(settings);
    }

    /// Handles the loss of our incarnation, and with it of all holds of its processes. The next
    /// incarnation asks again for the waiting requests, behind requests that other hosts have made
    /// meanwhile.
    pub(crate) fn lost(&mut self, host: HostId, why: &LostWhy) {
        if host == NO_HOST || host != self.decide.host() {
            return;
        }
        tracing::error!(host = host.0, "lost all holds of this host: {why}");
        let now = clock::boottime_ms();
        self.decide.lose_holds(why, &self.owners, now);
        self.observe.history.lose();
        self.decide.end_membership();
        // This drops everything known about the waiters, including grants that have not been sent
        // yet.
        let waiters = self.waiters.forget_all();
        let again = waiters.iter().filter_map(|(request, waiter)| {
            let conn = self.conns.waiter(*request)?;
            Some((conn, self.newcomer_again(*request, waiter)))
        });
        let again: Vec<_> = again.collect();
        self.leases = Leases::default();
        self.due.come_back = None;
        self.owners.forget_all();
        self.children.remove_all(&mut self.owners);
        self.conns.disown_all();
        for (id, request) in again {
            match request {
                Some(request) => {
                    let step = self.wait_for_membership(id, request);
                    self.carry_out(id, Ok(step));
                }
                None => self.carry_out(id, Err(ended_unseen())),
            }
        }
        self.end_lost(now);
        self.due.changed = true;
    }

    fn newcomer_again(&self, id: RequestId, waiter: &Waiter) -> Option<PendingAcquire> {
        let table = self.decide.table();
        let asked = table.request(id)?.clone();
        let frame = table.frame_of_request(id).filter(|_| asked.provisional);
        let pidfd = frame.and_then(|frame| self.owners.of(frame)?.try_clone().ok());
        Some(PendingAcquire::again(asked, waiter.more, pidfd))
    }
}

/// Ends commands in time, before another host can be granted their locks.
///
/// The supervisor (`canal run`) reads the same deadlines on the deadline page, and ends its command
/// with all processes that the command started. The daemon's signals are the first line of defence,
/// and the only one for a process without a supervisor.
///
/// Invariant: after an incarnation lost its holds, this host asks for no grant until every process
/// that has to be killed is dead.
impl Server {
    /// Signals the commands whose deadline has passed. Each turn begins with this, because the
    /// daemon itself may have been stopped for any length of time.
    pub(crate) fn stop_in_time(&mut self) {
        let now = clock::boottime_ms();
        self.decide.stop_due(&self.owners, now);
        self.end_lost(now);
    }

    /// Starts to kill all commands for which this host had locks. They must be dead before it
    /// joins.
    pub(crate) fn clear(&mut self) {
        let now = clock::boottime_ms();
        self.decide.clear(&self.owners, now);
        self.end_lost(now);
    }

    /// Ends the commands that are due. Once they are dead, asks for the requests that had to wait
    /// for that.
    pub(crate) fn end_lost(&mut self, now: u64) {
        if self.decide.end_lost(&self.owners, now) {
            self.ask_for_those_waiting();
        }
    }
}

/// The recovery of a table that many hosts share, as one of their daemons sees it. While it lasts,
/// requests wait here and the daemon sends no grant.
///
/// Invariant: once a recovery is over, the daemon asks again for each request that was refused
/// because of it.
impl Server {
    /// Reports a change of the recovery, after an entry was applied or the table was replaced.
    /// `before`: whether a recovery was under way before that.
    pub(crate) fn follow_recovery(&mut self, before: bool) {
        let now = self.decide.table().recovery().is_some();
        self.decide.follow_recovery();
        // Before it joins, a host reads old entries whose recoveries ended long ago.
        if now == before || !self.decide.is_member() {
            return;
        }
        self.due.changed = true;
        if let Some(words) = self.decide.recovery_words() {
            tracing::warn!("{words}");
        } else {
            tracing::info!("the table has recovered; granting locks again");
            self.ask_for_those_waiting();
        }
    }
}

/// Decides whether this host may rest. An engine that wakes every listening host for each batch
/// does not wake a resting one.
///
/// Invariant: this host keeps listening while a batch of another host can immediately affect a
/// client or a lease of this host.
impl Server {
    /// Passes the calls of this turn to the engine.
    pub(crate) fn ask_engine(&mut self) {
        let is_needed = self.needs_announcements();
        self.decide.ask_engine(is_needed);
    }

    /// Whether something here depends on the batches of other hosts. A process that holds a lock
    /// does not depend on them: its own host ends the hold, and a renewal reports a lost
    /// membership. Only a hook must learn at once that another host released the lock by force. A
    /// lease does depend on them, because its renewal must not wait for a read.
    fn needs_announcements(&self) -> bool {
        let table = self.decide.table();
        let holds = || table.frames_of_host(self.decide.host()).next().is_some();
        let watchers = [Subject::Report, Subject::Status, Subject::Leader];
        self.decide.is_shared()
            && (self.waiters.iter().next().is_some()
                || self.leases.next_end().is_some()
                || table.recovery().is_some()
                || self.observe.hooks.are_told_of_ends() && holds()
                || watchers.iter().any(|it| self.conns.waits(*it).next().is_some()))
    }
}

/// Calls that wait for the shared log: how long they wait, and the messages that clients get
/// meanwhile.
///
/// Invariant: a client that expects a message gets one before it would consider the daemon dead.
impl Server {
    /// Sends what is due to the clients whose calls wait for the log. Fails all these calls while
    /// the engine refuses this host and only a person can fix that.
    pub(crate) fn look_at_pending(&mut self) {
        let now = clock::boottime_ms();
        let is_refused = self.decide.cluster().is_some_and(Cluster::is_refused);
        let due = self.conns.log_waits().filter(|(_, wait)| is_refused || wait.due() <= now);
        let due: Vec<ConnId> = due.map(|(id, _)| id).collect();
        due.into_iter().for_each(|id| self.look_at_one(id, now, is_refused));
    }

    fn look_at_one(&mut self, id: ConnId, now: u64, is_refused: bool) {
        let why = self.decide.not_a_member();
        let Some(conn) = self.conns.get(id) else { return };
        let Some(LogWait { patience, .. }) = conn.log_wait_mut() else { return };
        let Some(patience) = patience.as_mut().filter(|_| !is_refused) else {
            return self.give_up_waiting(id, why);
        };
        if patience.until.is_some_and(|until| until <= now) {
            let failure = wording::timeout(&patience.key, &why.message);
            return self.give_up_waiting(id, failure);
        }
        if std::mem::take(&mut patience.untold) {
            let (key, reason) = (patience.key.to_string(), why.message);
            conn.progress(&Progress { key, reason, ..Progress::default() });
        }
    }

    /// Fails a call that waits for the log. If its change is a request, it is released when it
    /// comes out of the log. Any other change takes effect then.
    fn give_up_waiting(&mut self, id: ConnId, failure: Failure) {
        let CallState::Log(wait) = self.conns.end_wait(id) else { return };
        let failure = match wait.what {
            Awaiting::Change(_, PendingCall::Ask(_) | PendingCall::Question(_)) => failure,
            Awaiting::Change(..) => failure.hint(
                "the change is still queued; it will be applied once the engine is reachable",
            ),
            Awaiting::Membership => {
                if let Some(conn) = self.conns.get(id)
                    && let Some(call) = conn.calls.pop_front()
                {
                    conn.begin_call(call.replies);
                }
                failure
            }
            Awaiting::MembershipOf(_) => failure,
        };
        self.carry_out(id, Err(failure));
    }

    /// Makes the first call of a connection wait until this host is a member, or has read the log.
    pub(super) fn put_off(&mut self, id: ConnId) {
        let step = self.wait_for_log(id, Awaiting::Membership);
        self.carry_out(id, Ok(step));
        self.look_at_pending();
    }

    /// Serves the calls that waited until this host is a member, or has read the log.
    pub(crate) fn resume_put_off(&mut self) {
        let is_put_off = |state: &CallState| {
            matches!(state, CallState::Log(LogWait { what: Awaiting::Membership, .. }))
        };
        self.conns.end_waits(Subject::Log, is_put_off);
    }

    /// Asks for the requests that had to wait until this host may ask for them.
    pub(crate) fn ask_for_those_waiting(&mut self) {
        let is_waiting = |state: &CallState| {
            matches!(state, CallState::Log(LogWait { what: Awaiting::MembershipOf(_), .. }))
        };
        self.ask_again(Subject::Log, is_waiting);
    }

    /// Asks for deferred requests again: all of them after a death, otherwise those whose time is
    /// over.
    pub(crate) fn retry_deferred(&mut self, deaths: bool) {
        let now = clock::now();
        let is_due = |it: &PendingAcquire| deaths || it.deferred_until.is_none_or(|at| at <= now);
        let is_due = |state: &CallState| matches!(state, CallState::Deferred(it) if is_due(it));
        self.ask_again(Subject::Death, is_due);
    }

    /// Repeats requests for locks, or questions whether they would be granted, for calls that had
    /// to wait until then.
    fn ask_again(&mut self, subject: Subject, is_due: impl Fn(&CallState) -> bool) {
        for (id, state) in self.conns.end_waits(subject, is_due) {
            let newcomer = match state {
                CallState::Deferred(it) => it,
                CallState::Log(LogWait { what: Awaiting::MembershipOf(it), .. }) => it,
                _ => continue,
            };
            let step = self.ask(newcomer);
            self.carry_out(id, Ok(step));
        }
    }
}
