//! The daemon at work: one task owns everything, and does everything in turns.
//!
//! A turn takes in what the kernel reports, in this order: withdrawals and deaths, releases,
//! requests; records it; and only then answers.
//!
//! Invariant: nothing is answered, and no grant is made, that a death reported before the turn
//! would have changed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use super::acquire::Aside;
use super::alarm::Alarm;
use super::children::Children;
use super::config::Limits;
use super::conn::{ConnId, Connection, Doing};
use super::conns::{Conns, Severed};
use super::due::Due;
use super::follow::Link;
use super::home::Home;
use super::leases::Leases;
use super::ledger::Ledger;
use super::owners::Owners;
use super::permission::Permissions;
use super::propose::Then;
use super::roll::Roll;
use super::shown::Shown;
use super::stop::Stops;
use super::underway::Underway;
use super::waiting::Waiting;
use super::words;
use crate::core::{
    Change, FrameId, Granted, HoldState, Outcome, Refusal, Release, RequestId, Token, Withdrawal,
};
use crate::protocol::{DaemonShown, ErrorName, Failure};
use crate::sys::clock;
use crate::sys::deadline::Writer;

/// The daemon at work.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) about: DaemonShown,
    pub(super) home: Home,
    /// Until when holds are sure; only over an engine.
    pub(super) deadline: Option<Writer>,
    /// What else is known of the engine.
    pub(super) link: Link,
    pub(super) underway: Underway,
    pub(super) roll: Roll,
    pub(super) stops: Stops,
    pub(super) alarm: Option<Alarm>,
    pub(super) limits: Limits,
    pub(super) permissions: Permissions,
    pub(super) ledger: Ledger,
    pub(super) owners: Owners,
    pub(super) children: Children,
    pub(super) conns: Conns,
    pub(super) waiting: Waiting,
    pub(super) leases: Leases,
    /// Requests that may not wait, put aside while a holder is on its way out.
    pub(super) aside: Vec<Aside>,
    /// Waiters whose process is stopped, and the process.
    pub(super) stopped: BTreeMap<RequestId, u32>,
    /// Grants to those who waited, not yet told.
    pub(super) granted: VecDeque<Granted>,
    /// Provisional grants of the daemon before this one whose asker has not come back.
    pub(super) unclaimed: BTreeSet<RequestId>,
    /// Requests that began to wait in this turn and take words of progress.
    pub(super) newcomers: Vec<RequestId>,
    pub(super) due: Due,
    /// Whether the table changed since it was shown to those who watch and wait.
    pub(super) changed: bool,
    /// Whether our files were removed and could not be made again yet.
    pub(super) restore_failed: bool,
    /// Nothing is taken on any more.
    pub(super) stopping: bool,
}

impl Server {
    /// Does what is to be done now.
    ///
    /// # Errors
    /// If what was decided cannot be recorded. Then the daemon has to end without a word: the next
    /// one goes on from what is recorded.
    pub(super) fn turn(&mut self) -> anyhow::Result<()> {
        self.stop_in_time();
        let mut connections_max = self.connections_max();
        if self.conns.len() >= connections_max {
            self.owners.forget_resting();
            connections_max = self.connections_max();
        }
        self.home.listener.accept(&mut self.conns, connections_max);
        self.conns.hear();
        // After the sockets: who asks after a command has ended finds its end reported.
        let ended = self.owners.take_ended();
        let deaths = !ended.is_empty();
        for severed in self.conns.take_severed() {
            self.sever(severed);
        }
        for frame in ended {
            self.end(frame);
        }
        self.take_fifos();
        self.follow_engine()?;
        self.settle();
        self.on_time(Instant::now());
        self.retry_aside(deaths);
        self.serve();
        self.inform(Instant::now());
        self.ledger.commit()?;
        self.ask_engine();
        self.conns.flush();
        self.ledger.tidy();
        self.set_alarm()?;
        Ok(())
    }

    fn connections_max(&self) -> usize {
        self.limits.connections(self.owners.len() + self.children.len())
    }

    /// Whether the next turn has something to do already.
    pub(super) fn has_work(&self) -> bool {
        self.conns.has_work()
    }

    /// Serves the calls that came: what gives back first. Leases end after the renewals that came in
    /// time, also where the daemon could not take them in until now.
    fn serve(&mut self) {
        loop {
            self.settle();
            let active = self.conns.take_active();
            for id in &active {
                while self.next_goes_first(*id) {
                    self.serve_one(*id);
                }
            }
            if self.leases.is_over(clock::boottime_ms()) {
                self.hear_renewals();
                self.end_leases();
            }
            self.settle();
            if active.is_empty() && !self.conns.has_active() {
                return;
            }
            for id in &active {
                while self.conns.peek(*id).is_some_and(Connection::is_ready) {
                    self.serve_one(*id);
                }
            }
        }
    }

    /// Takes in what was sent until now, also what the runtime has not heard of: a daemon that goes
    /// on after it was stopped hears of the time first.
    fn hear_renewals(&mut self) {
        let connections_max = self.limits.connections(self.owners.len() + self.children.len());
        self.home.listener.accept_unasked(&mut self.conns, connections_max);
        self.conns.hear();
        for id in self.conns.take_active() {
            while self.next_goes_first(id) {
                self.serve_one(id);
            }
            self.conns.activate(id);
        }
    }

    fn next_goes_first(&self, id: ConnId) -> bool {
        let conn = self.conns.peek(id).filter(|conn| conn.is_ready());
        conn.and_then(|conn| conn.calls.front()).is_some_and(|call| call.asked.goes_first())
    }

    /// Takes note of what was decided; the rest is for the one who asked for it.
    pub(super) fn note(&mut self, outcome: &Outcome, owner_ended: bool) {
        match outcome {
            Outcome::Queued { request, .. } => {
                if let Some(waiter) = self.ledger.table.waiter(*request)
                    && waiter.request.host == self.ledger.host
                {
                    self.waiting.add(waiter, self.ledger.table.session(waiter.frame));
                }
            }
            Outcome::Granted(granted) if self.is_ours(granted) => {
                self.leases.begin(&self.ledger.table, self.ledger.host, granted.frame);
                self.granted.push_back(granted.clone());
            }
            Outcome::Requeued { request, token } => {
                if let Some(waiter) = self.ledger.table.waiter(*request) {
                    self.leases.forget(waiter.frame);
                }
                self.granted.retain(|granted| granted.token != *token);
                tracing::debug!(request = request.0, token = token.0, "taken back untold");
            }
            Outcome::Refused { request, why } => self.refuse_waiter(*request, why),
            Outcome::Withdrawn { request } => {
                self.stopped.remove(request);
                let waiter = self.waiting.remove(*request);
                if let Some(conn) = waiter.and_then(|waiter| waiter.conn) {
                    self.done(conn);
                    if owner_ended {
                        self.fail(conn, &owner_gone());
                    }
                }
            }
            Outcome::Released { token, frame, whole, .. } => {
                if *whole {
                    self.hold_ended(*token);
                    self.leases.forget(*frame);
                }
                tracing::debug!(token = token.0, session = %format_args!("s{frame}"), "released");
            }
            Outcome::FrameGone { frame } => self.owners.rest(*frame),
            Outcome::Renewed { frame, .. } => {
                self.leases.begin(&self.ledger.table, self.ledger.host, *frame);
            }
            Outcome::LeaseMoved { frame, .. } => {
                self.leases.begin(&self.ledger.table, self.ledger.host, *frame);
            }
            Outcome::NotHeld
            | Outcome::LeaseGone
            | Outcome::Granted(_)
            | Outcome::Barrier { .. }
            | Outcome::ResizeRefused { .. }
            | Outcome::Resized { .. } => {}
        }
    }

    /// A request that waited is refused after all.
    fn refuse_waiter(&mut self, id: RequestId, why: &Refusal) {
        let Some(waiter) = self.waiting.remove(id) else { return };
        self.stopped.remove(&id);
        if let Some(conn) = waiter.conn {
            let failure = if let Refusal::Deadlock { cycle } = why {
                let viewer = self.conns.peek(conn).map_or(waiter.asked.uid, |conn| conn.peer.uid);
                self.deadlock(viewer, cycle, &waiter.asked)
            } else {
                let item = words::item_of(why).and_then(|at| waiter.asked.items.get(at));
                words::late_refusal(why, item.map(|(key, _)| key))
            };
            self.done(conn);
            self.fail(conn, &failure);
        }
    }

    /// The call at work on a connection is answered: the next one can be served.
    pub(super) fn done(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get(id) {
            conn.doing = Doing::Nothing;
        }
        self.conns.activate(id);
    }

    pub(super) fn fail(&mut self, id: ConnId, failure: &Failure) {
        if let Some(conn) = self.conns.get(id) {
            conn.fail(failure);
        }
    }

    /// The table as a user may see it.
    pub(super) fn shown(&self, viewer: u32) -> Shown<'_> {
        let (table, leases) = (&self.ledger.table, &self.leases);
        let here = self.ledger.host;
        Shown { table, leases, unverified: &self.owners.unverified, viewer, here }
    }

    /// A peer is gone: what it waits for is withdrawn, what it was not told is taken back.
    fn sever(&mut self, severed: Severed) {
        self.sever_pending(severed.id);
        let Some(conn) = self.conns.get(severed.id) else { return };
        let untold = conn.untold.take().filter(|_| severed.unread || !conn.is_flushed());
        if untold.is_some() {
            conn.take_back_words();
        }
        let doing = match conn.doing {
            Doing::Pending => Doing::Pending,
            _ => std::mem::replace(&mut conn.doing, Doing::Nothing),
        };
        let provisional = std::mem::take(&mut conn.provisional);
        let mut gone: Vec<RequestId> = provisional.into_iter().chain(untold).collect();
        match doing {
            Doing::Waits(request) => gone.push(request),
            Doing::Aside => self.aside.retain(|aside| aside.conn() != severed.id),
            Doing::Nothing | Doing::Pending | Doing::Watches(_) => {}
        }
        for request in gone {
            // Nobody is left to be told.
            if let Some(waiter) = self.waiting.get_mut(request) {
                waiter.conn = None;
            }
            let why = Withdrawal::Cancelled;
            self.propose(Change::Withdraw { request, why }, Then::Nothing);
        }
        self.conns.activate(severed.id);
    }

    /// The process of a frame has ended.
    pub(super) fn end(&mut self, frame: FrameId) {
        let Some(state) = self.ledger.table.frame(frame) else { return };
        tracing::debug!(
            session = %format_args!("s{frame}"),
            pid = super::shown::pid_of(&state.owner),
            "the owner has ended"
        );
        self.owners.forget(frame);
        self.propose(Change::End { frame }, Then::End { frame });
    }

    /// The end of a frame's process is in the table: what is left is kept for its descendants.
    pub(super) fn ended(&mut self, frame: FrameId) {
        let orphaned: Vec<Token> =
            self.ledger.table.holds_in(frame).map(|hold| hold.token).collect();
        for token in orphaned {
            self.end_without_writers(token);
        }
    }

    /// Ends a hold that is kept for descendants, if none is left; else waits for that.
    pub(super) fn end_without_writers(&mut self, token: Token) {
        let Some(tag) = self.ledger.table.hold(token).map(|hold| hold.asked.tag) else { return };
        match self.children.await_end(token, tag, &self.conns) {
            Ok(true) => {}
            Ok(false) => {
                let release = Release::Hold { token, forced: false };
                self.propose(Change::Release(release), Then::Nothing);
            }
            // Whether descendants live cannot be told, so that it is kept until it is forced.
            Err(error) => tracing::warn!(%error, token = token.0, "its FIFO cannot be watched"),
        }
    }

    fn take_fifos(&mut self) {
        for token in self.conns.take_fifos() {
            let orphaned = self.ledger.table.hold(token).is_some_and(|hold| hold.orphaned);
            if orphaned && !self.children.has_writers(token) {
                let release = Release::Hold { token, forced: false };
                self.propose(Change::Release(release), Then::Nothing);
            }
        }
    }

    /// Nothing is left of a hold.
    pub(super) fn hold_ended(&mut self, token: Token) {
        self.children.remove(token, &self.conns);
        self.roll.end(token);
    }

    /// Whether a grant is to one of ours.
    fn is_ours(&self, granted: &Granted) -> bool {
        let host = self.ledger.host;
        let of = |hold: &HoldState| hold.asked.host == host;
        self.ledger.engine().is_none()
            || self.waiting.get(granted.request).is_some()
            || self.ledger.table.hold(granted.token).is_some_and(of)
    }

    /// What a waiter is told whose time is over.
    pub(super) fn timeout_failure(&self, request: RequestId, viewer: u32) -> Failure {
        let shown = self.shown(viewer);
        let Some(why) = shown.why(request) else {
            let mut failure = Failure::new(ErrorName::Refused, "the wait is over");
            failure.reason = Some("timeout".into());
            return failure;
        };
        let mut failure = words::timeout(&why.key, &why.clause);
        failure.holders = shown.holders(&why.key, why.mode, &why.kin);
        failure
    }
}

/// What one is told whose owner has ended.
pub(super) fn owner_gone() -> Failure {
    Failure::new(ErrorName::OwnerGone, "the process that was to hold the lock has ended")
}
