//! Asking for a lock.

use std::os::fd::OwnedFd;
use std::time::Instant;

use super::ask;
use super::asker::{NOBODY, OwnerFound, cannot_watch};
use super::conflict::{kin, obstacles};
use super::conn::{ConnId, Doing};
use super::follow::granted;
use super::limits::{EXITING_TIME, PROCESSES_LOOKED_AT_MAX};
use super::propose::{Applied, Then};
use super::server::Server;
use super::shown::pid_of;
use super::underway::{Patience, Pending};
use super::waiting::Asked;
use super::words::{self, Use};
use crate::core::{
    Change, FrameId, Granted, Outcome, Refusal, Request, RequestId, Tag, UnixMillis, Wait,
};
use crate::log::journal::NoRoom;
use crate::protocol::{Acquire, ErrorName, Failure};
use crate::sys::clock;
use crate::sys::pidfd::Pidfd;
use crate::sys::process::{RunState, run_state};

/// A request on its way to the table.
#[derive(Debug)]
pub(super) struct Newcomer {
    pub(super) conn: ConnId,
    pub(super) request: Request,
    /// The owner's, if it was opened already.
    pidfd: Option<Pidfd>,
    more: bool,
    /// Until when it is put aside rather than refused, once it was.
    aside_until: Option<Instant>,
    /// Of its user as many wait as may (so many): it is granted at once or not at all.
    crowd: Option<usize>,
}

/// A request that may not wait, put aside while a holder is on its way out.
#[derive(Debug)]
pub(super) struct Aside {
    newcomer: Newcomer,
    /// It is tried again then at the latest, and answered.
    pub(super) until: Instant,
}

impl Newcomer {
    /// One who waited already, for the next incarnation of this host.
    pub(super) fn again(conn: ConnId, request: Request, more: bool, pidfd: Option<Pidfd>) -> Self {
        Self { conn, request, pidfd, more, aside_until: None, crowd: None }
    }

    /// What it is to be told while the log of many hosts keeps it, if it may wait.
    pub(super) fn patience(&self) -> Option<Patience> {
        let Wait::Yes { until } = self.request.wait else { return None };
        let key = self.request.items.first().map_or_else(String::new, |item| item.key.to_string());
        Some(Patience { until, untold: self.more, key })
    }

    /// Whether this is its request.
    fn is_of(&self, owner: &OwnerFound) -> bool {
        self.request.owner == owner.owner && self.request.uid == owner.uid
    }
}

impl Aside {
    pub(super) fn conn(&self) -> ConnId {
        self.newcomer.conn
    }
}

impl Server {
    pub(super) fn acquire(
        &mut self,
        id: ConnId,
        acquire: Acquire,
        more: bool,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Failure> {
        if self.stopping || self.conns.peek(id).is_none_or(|conn| conn.heard_end) {
            // Nobody is there to be told, or the next daemon answers.
            return Ok(());
        }
        let items = ask::items(&acquire.items)?;
        self.check_wrapper(acquire.wrapper)?;
        let provisional = acquire.owner_fd.is_some() || acquire.lease.is_some();
        let owner = match acquire.lease {
            Some(lease) => self.lease_owner(id, &acquire, lease)?,
            None => self.owner(id, acquire.owner_fd, fds)?,
        };
        let known = self.ledger.table.tagged(acquire.tag);
        if let Some(request) = known.filter(|request| !self.underway.leaving.contains(request)) {
            return self.attach_again(id, request, owner, more);
        }
        if self.is_underway(id, acquire.tag, &owner, more)? {
            return Ok(());
        }
        self.may_hold(id, &items, acquire.priority)?;
        let wait = match acquire.wait_ms {
            Some(0) => Wait::No,
            Some(wait_ms) => {
                Wait::Yes { until: Some(clock::boottime_ms().saturating_add(wait_ms)) }
            }
            None => Wait::Yes { until: None },
        };
        let crowd = self.crowd(wait, owner.uid);
        let wait = if crowd.is_some() { Wait::No } else { wait };
        let request = Request {
            tag: acquire.tag,
            host: self.ledger.host,
            parent: self.enclosing(acquire.frame.as_deref(), &owner),
            owner: owner.owner,
            uid: owner.uid,
            command: ask::command(&acquire.command),
            items,
            wait,
            priority: acquire.priority,
            provisional,
            children: acquire.with_children,
            ttl_ms: acquire.lease.map(|lease| lease.ttl_ms),
            on_lost: acquire.on_lost,
        };
        self.ledger.admit(&request).map_err(|error| disk_full(&error))?;
        let pidfd = owner.pidfd;
        self.ask(Newcomer { conn: id, request, pidfd, more, aside_until: None, crowd });
        Ok(())
    }

    /// How many requests of a user may wait, if one that would wait is one too many.
    fn crowd(&self, wait: Wait, uid: u32) -> Option<usize> {
        let most = self.limits.waiters_per_user;
        (wait != Wait::No && self.waiting.of_user(uid) >= most).then_some(most)
    }

    pub(super) fn ask(&mut self, mut newcomer: Newcomer) {
        newcomer.request.host = self.ledger.host;
        // It may have ended while the request was put aside.
        let table = &self.ledger.table;
        let lives = |frame: &FrameId| table.frame(*frame).is_some_and(|state| !state.ended);
        newcomer.request.parent = newcomer.request.parent.filter(lives);
        let change = Change::Request(Box::new(newcomer.request.clone()));
        self.propose(change, Then::Ask(newcomer));
    }

    /// A request is in the table: goes on as was decided.
    pub(super) fn asked(&mut self, newcomer: Newcomer, applied: Applied) {
        let Applied { revision, outcomes } = applied;
        let request = RequestId(revision.0);
        let mut mine = outcomes.into_iter().filter(|outcome| match outcome {
            Outcome::Queued { request: id, .. } | Outcome::Refused { request: id, .. } => {
                *id == request
            }
            Outcome::Granted(granted) => granted.request == request,
            _ => false,
        });
        // Who queued may be refused at once for the deadlock that it made; if it is granted at once
        // because of another's refusal, it is told as one who waited.
        let first = mine.next();
        let refused = mine.find(|outcome| matches!(outcome, Outcome::Refused { .. }));
        match refused.or(first) {
            Some(Outcome::Granted(granted)) if !self.is_sure() => {
                self.keep_untold(newcomer, &granted);
            }
            Some(Outcome::Granted(granted)) => {
                self.granted.retain(|other| other.request != request);
                self.grant_at_once(newcomer, &granted);
            }
            Some(Outcome::Queued { frame, .. }) => {
                self.begin_to_wait(newcomer.conn, request, newcomer.more);
                if newcomer.request.provisional
                    && let Err(failure) = self.watch_owner(newcomer.conn, frame, newcomer.pidfd)
                {
                    self.waiting.remove(request);
                    self.done(newcomer.conn);
                    self.take_back(newcomer.conn, request, &failure);
                }
            }
            Some(Outcome::Refused { why, .. }) => self.refuse(newcomer, &why),
            _ => tracing::error!(request = request.0, "the table said nothing to a request"),
        }
    }

    /// Goes on with a request that is on its way into the log, or waits for that; its asker lost its
    /// connection.
    fn is_underway(
        &mut self,
        id: ConnId,
        tag: Tag,
        owner: &OwnerFound,
        more: bool,
    ) -> Result<bool, Failure> {
        let Some((what, newcomer)) = self.underway.tagged(tag) else { return Ok(false) };
        if !newcomer.is_of(owner) {
            let message = "the tag names a request of another process or lease";
            return Err(Failure::new(ErrorName::BadRequest, message));
        }
        let before = std::mem::replace(&mut newcomer.conn, id);
        newcomer.more = more;
        let patience = newcomer.patience();
        self.underway.take_back(what);
        let is_there = |it: &Pending| it.what == what;
        if before != id && self.underway.pending.get(&before).is_some_and(is_there) {
            self.underway.pending.remove(&before);
            self.done(before);
            self.fail(before, &asked_elsewhere());
        }
        self.wait_for_log(id, what, patience);
        Ok(true)
    }

    /// Tells a grant to one who asks for it once more, as soon as that is sure.
    fn tell_later(&mut self, id: ConnId, request: RequestId, more: bool) -> Result<(), Failure> {
        let table = &self.ledger.table;
        let hold = table.hold_of(request).filter(|hold| hold.asked.wait != Wait::No);
        let Some(hold) = hold else { return Err(self.not_a_member()) };
        self.granted.push_back(granted(table, hold));
        self.waiting.add_granted(hold, table.session(hold.frame), id);
        self.begin_to_wait(id, request, more);
        Ok(())
    }

    /// A grant that must not be told now: too little time would be left to who starts a command by
    /// it. It is told after the next renewal.
    fn keep_untold(&mut self, newcomer: Newcomer, granted: &Granted) {
        let (id, request) = (newcomer.conn, granted.request);
        let table = &self.ledger.table;
        let hold = table.hold(granted.token);
        let Some(hold) = hold.filter(|hold| hold.asked.wait != Wait::No) else {
            let failure = self.not_a_member();
            self.granted.retain(|other| other.request != request);
            return self.take_back(id, request, &failure);
        };
        self.waiting.add_granted(hold, table.session(hold.frame), id);
        self.begin_to_wait(id, request, false);
    }

    fn grant_at_once(&mut self, newcomer: Newcomer, granted: &Granted) {
        self.done(newcomer.conn);
        match self.watch_owner(newcomer.conn, granted.frame, newcomer.pidfd) {
            Ok(()) => self.tell_grant(newcomer.conn, granted),
            Err(failure) => self.take_back(newcomer.conn, granted.request, &failure),
        }
    }

    pub(super) fn begin_to_wait(&mut self, id: ConnId, request: RequestId, more: bool) {
        if let Some(waiter) = self.waiting.get_mut(request) {
            waiter.conn = Some(id);
            waiter.more = more;
            waiter.told = None;
        }
        if let Some(conn) = self.conns.get(id) {
            conn.doing = Doing::Waits(request);
            conn.save_memory();
        }
        if more {
            self.newcomers.push(request);
        }
    }

    fn refuse(&mut self, mut newcomer: Newcomer, why: &Refusal) {
        let now = Instant::now();
        let until = newcomer.aside_until.unwrap_or(now + EXITING_TIME);
        if let Refusal::Full { item } = why
            && until > now
            && self.somebody_is_leaving(&newcomer.request, *item)
        {
            tracing::debug!("a request waits for the end of a holder that is on its way out");
            if let Some(conn) = self.conns.get(newcomer.conn) {
                conn.doing = Doing::Aside;
            }
            newcomer.aside_until = Some(until);
            return self.aside.push(Aside { newcomer, until });
        }
        let failure = self.refusal(&newcomer, why);
        self.done(newcomer.conn);
        self.fail(newcomer.conn, &failure);
    }

    fn refusal(&self, newcomer: &Newcomer, why: &Refusal) -> Failure {
        let request = &newcomer.request;
        if let (Refusal::Full { .. }, Some(most)) = (why, newcomer.crowd) {
            return too_many_wait(most, request.uid);
        }
        let viewer = self.conns.peek(newcomer.conn).map_or(NOBODY, |conn| conn.peer.uid);
        if let Refusal::Deadlock { cycle } = why {
            let session = cycle.first().map_or(FrameId(0), |step| step.frame);
            let asked = Asked::of(request, session, UnixMillis(clock::unix_ms()));
            return self.deadlock(viewer, cycle, &asked);
        }
        let Some(item) = words::item_of(why).and_then(|at| request.items.get(at)) else {
            return words::refusal(why, request, None);
        };
        let (shown, mode) = (self.shown(viewer), item.ask.mode());
        let kin = self.kin_of(request);
        let table = &self.ledger.table;
        let use_of = Use {
            held: table.held_of(&item.key),
            view: table.own_view(&item.key),
            conflict: shown.conflict(&item.key, mode, &kin),
        };
        let mut failure = words::refusal(why, request, Some(&use_of));
        if failure.name == ErrorName::Refused {
            failure.holders = match why {
                // It is about what this session holds itself.
                Refusal::OwnDeadlock { .. } => shown.holders(&item.key, mode, &[]),
                _ => shown.holders(&item.key, mode, &kin),
            };
        }
        failure
    }

    /// The frames whose holds are not in the way of a request that has no frame yet, or its own.
    fn kin_of(&self, request: &Request) -> Vec<FrameId> {
        let frame = self.ledger.table.frame_of(request.host, &request.owner).or(request.parent);
        frame.map_or_else(Vec::new, |frame| kin(&self.ledger.table, frame))
    }

    /// Whether the process of a holder is on its way out: it ended its output, or closed its
    /// connection, and its end is about to be reported.
    fn somebody_is_leaving(&self, request: &Request, item: usize) -> bool {
        let Some(item) = request.items.get(item) else { return false };
        let (table, max) = (&self.ledger.table, PROCESSES_LOOKED_AT_MAX);
        let in_the_way = obstacles(table, &item.key, item.ask.mode(), &[], max).take(max);
        in_the_way
            .filter(|obstacle| obstacle.hold.asked.host == self.ledger.host)
            .map(|obstacle| pid_of(&obstacle.hold.asked.owner))
            .any(|pid| run_state(pid) == RunState::Exiting)
    }

    /// Tries again what was put aside: after somebody ended, and when its time is over.
    pub(super) fn retry_aside(&mut self, deaths: bool) {
        if self.aside.is_empty() {
            return;
        }
        let now = Instant::now();
        for aside in std::mem::take(&mut self.aside) {
            if deaths || aside.until <= now {
                self.ask(aside.newcomer);
            } else {
                self.aside.push(aside);
            }
        }
    }

    /// Goes on with a request that is known: its asker lost its connection, or this is another
    /// daemon than the one it asked first.
    fn attach_again(
        &mut self,
        id: ConnId,
        request: RequestId,
        owner: OwnerFound,
        more: bool,
    ) -> Result<(), Failure> {
        let table = &self.ledger.table;
        let waiter = table.waiter(request);
        let frame = waiter.map(|waiter| waiter.frame);
        let frame = frame.or_else(|| table.hold_of(request).map(|hold| hold.frame));
        let same = frame
            .and_then(|frame| table.frame(frame))
            .filter(|frame| frame.host == self.ledger.host)
            .is_some_and(|frame| frame.uid == owner.uid && frame.owner == owner.owner);
        let Some(frame) = frame.filter(|_| same) else {
            let message = "the tag names a request of another process or lease";
            return Err(Failure::new(ErrorName::BadRequest, message));
        };
        // One that was granted something and is still to be told waits, too.
        if waiter.is_none() && self.waiting.get(request).is_none() {
            if !self.is_sure() {
                return self.tell_later(id, request, more);
            }
            return self.tell_again(id, request, frame, owner.pidfd);
        }
        if let Some(before) = self.waiting.get(request).and_then(|waiter| waiter.conn) {
            self.done(before);
            self.fail(before, &asked_elsewhere());
        }
        let provisional =
            self.ledger.table.waiter(request).is_some_and(|waiter| waiter.request.provisional);
        if provisional && let Some(pidfd) = owner.pidfd {
            self.owners.watch(frame, None, pidfd).map_err(|error| cannot_watch(&error))?;
        }
        self.begin_to_wait(id, request, more);
        self.stopped.remove(&request);
        self.propose(Change::Resume { request }, Then::Nothing);
        Ok(())
    }
}

fn asked_elsewhere() -> Failure {
    let message = "the same request was asked on another connection";
    Failure::new(ErrorName::BadRequest, message)
}

/// What one is told who would have to wait, as too many of its user do.
fn too_many_wait(most: usize, uid: u32) -> Failure {
    let message = format!("{most} requests of uid {uid} wait already");
    tracing::warn!("{message}, more are refused");
    Failure::new(ErrorName::TooManyWaiters, message)
        .hint("raise `waiters_per_user` in the configuration")
}

/// What one is told whose request cannot be recorded.
pub(super) fn disk_full(error: &NoRoom) -> Failure {
    tracing::warn!(%error, "a request is refused");
    Failure::new(ErrorName::DiskFull, error.to_string())
        .hint("nothing that is held is lost; make room and try again")
}
