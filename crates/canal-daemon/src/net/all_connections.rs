//! All connections, and the work for each of them in this turn.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::epoll::{EpollEvent, EpollFlags};
use slotmap::{Key, KeyData, SlotMap};

use crate::calls::call::{Answer, ConnId};
use crate::membership::Ticket;
use crate::net::call_state::{Awaiting, CallState, LogWait, PendingCall, Subject};
use crate::net::connection::Connection;
use crate::poller::{EVENTS_AT_ONCE, Poller};
use canal_core::{Request, RequestId, Tag};
use canal_protocol::Failure;
use canal_sys::clock;
use canal_sys::peer::Credentials;

/// How long a connection may take to read its last reply before the daemon closes it.
const CLOSING_TIME: Duration = Duration::from_secs(5);

/// The minimum time between two searches for idle connections.
const IDLE_LOOKED_FOR_EVERY: Duration = Duration::from_secs(1);

/// The most bytes that are read at once.
const READ_BYTES: usize = 64 * 1024;

/// All connections.
#[derive(Debug)]
pub(crate) struct Conns {
    open: SlotMap<ConnId, Box<Connection>>,
    /// The number of connections of each user. A user without connections may still have an entry
    /// of 0.
    of_users: BTreeMap<u32, usize>,
    /// How many connections only receive the error that there are too many.
    turned_away: usize,
    /// When idle connections were last searched for.
    idle_looked_for: Option<Instant>,
    poller: Poller,
    /// Connections with more data than the last turn allowed to read.
    pub unheard: Vec<ConnId>,
    /// Connections with calls that may be served, in the order in which the calls arrived.
    pub active: Vec<ConnId>,
    /// Connections with something to write or to close.
    touched: Vec<ConnId>,
    /// Connections whose peer has closed its end, or that the daemon is closing.
    pub disconnected: Vec<ConnId>,
    /// Connections that still write their last reply, with the latest time at which they are
    /// closed.
    closing: Vec<(Instant, ConnId)>,
    /// The connections whose call waits for each subject, in the order in which they began to wait;
    /// those that wait for a grant, by their request.
    waits: BTreeMap<(Subject, u64), ConnId>,
    /// The last place that was assigned in `waits`.
    last_place: u64,
    pub accept_backlog: AcceptBacklog,
    /// The other sources that the kernel reported and that were not handled yet.
    pub reported: BTreeSet<Source>,
    events: Vec<EpollEvent>,
    /// The number of events taken from the kernel and not handled yet.
    taken: usize,
    buffer: Vec<u8>,
}

impl Conns {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            open: SlotMap::with_key(),
            of_users: BTreeMap::new(),
            turned_away: 0,
            idle_looked_for: None,
            poller: Poller::new()?,
            unheard: Vec::new(),
            active: Vec::new(),
            touched: Vec::new(),
            disconnected: Vec::new(),
            closing: Vec::new(),
            waits: BTreeMap::new(),
            last_place: 0,
            accept_backlog: AcceptBacklog::default(),
            reported: BTreeSet::new(),
            taken: 0,
            events: vec![EpollEvent::empty(); EVENTS_AT_ONCE],
            buffer: vec![0; READ_BYTES],
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// How many connections are accepted for good, and how many are only turned away.
    pub(crate) fn taken_in(&self) -> (usize, usize) {
        (self.open.len() - self.turned_away, self.turned_away)
    }

    /// How many connections a user has.
    pub(crate) fn of_user(&self, uid: u32) -> usize {
        self.of_users.get(&uid).copied().unwrap_or(0)
    }

    /// Closes the connections that were idle for `time`, unless it searched for them recently.
    /// Returns whether it closed any. Sends no error: the client would take it for the reply to its
    /// next call.
    pub(crate) fn close_idle(&mut self, now: Instant, time: Duration) -> bool {
        let next = self.idle_looked_for.map(|at| at + IDLE_LOOKED_FOR_EVERY);
        if next.is_some_and(|next| now < next) {
            return false;
        }
        self.idle_looked_for = Some(now);
        let idle = self.open.iter().filter(|(_, conn)| conn.is_idle(now, time));
        let idle: Vec<ConnId> = idle.map(|(id, _)| id).collect();
        if !idle.is_empty() {
            tracing::info!("closing {} idle connections to make room for others", idle.len());
        }
        idle.iter().for_each(|id| self.part(*id));
        !idle.is_empty()
    }

    /// Adds a new connection, and reads what its client has already sent. The daemon polls it from
    /// the end of the turn on, because many connections are served and closed by then.
    pub(crate) fn open(
        &mut self,
        socket: OwnedFd,
        peer: Credentials,
        accepted_ticks: u64,
        turned_away: Option<Box<Failure>>,
    ) -> ConnId {
        *self.of_users.entry(peer.uid).or_default() += 1;
        self.turned_away += usize::from(turned_away.is_some());
        let mut conn = Connection::new(socket, peer, accepted_ticks);
        conn.turned_away = turned_away;
        let id = self.open.insert(Box::new(conn));
        self.read_one(id, EpollFlags::empty());
        id
    }

    pub(crate) fn peek(&self, id: ConnId) -> Option<&Connection> {
        self.open.get(id).map(Box::as_ref)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ConnId, &Connection)> {
        self.open.iter().map(|(id, conn)| (id, conn.as_ref()))
    }

    /// A connection to change. Its queued output is written at the end of the turn.
    pub(crate) fn get(&mut self, id: ConnId) -> Option<&mut Connection> {
        let conn = self.open.get_mut(id)?;
        if !conn.touched {
            conn.touched = true;
            self.touched.push(id);
        }
        Some(conn)
    }

    /// Queues a reply to the current call of a connection.
    pub(crate) fn answer(&mut self, id: ConnId, answer: Answer) {
        if let Some(conn) = self.get(id) {
            conn.answer(answer);
        }
    }

    /// Sets the event that the current call of a connection waits for. Returns the previous one.
    pub(crate) fn set_state(&mut self, id: ConnId, state: CallState) -> CallState {
        let Some(conn) = self.open.get_mut(id) else { return CallState::Idle };
        let place = match &state {
            CallState::Waits(request) => Some((Subject::Grant, request.0)),
            // A call that continues to wait for the same subject keeps its place.
            other if other.subject() == conn.place.map(|(subject, _)| subject) => conn.place,
            other => other.subject().map(|subject| {
                self.last_place += 1;
                (subject, self.last_place)
            }),
        };
        let before = std::mem::replace(&mut conn.place, place);
        if before != place {
            if let Some(before) = before {
                self.waits.remove(&before);
            }
            self.waits.extend(place.map(|place| (place, id)));
        }
        let before = std::mem::replace(&mut conn.state, state);
        self.get(id);
        before
    }

    /// Ends the wait of a call, and lets the next call be served. Returns the state of the wait.
    pub(crate) fn end_wait(&mut self, id: ConnId) -> CallState {
        let state = self.set_state(id, CallState::Idle);
        if !matches!(state, CallState::Idle) {
            self.activate(id);
        }
        state
    }

    /// Ends the waits for a subject that `is` selects. Returns their states.
    pub(crate) fn end_waits(
        &mut self,
        subject: Subject,
        is: impl Fn(&CallState) -> bool,
    ) -> Vec<(ConnId, CallState)> {
        let waits = self.waits(subject).filter(|(_, state)| is(state));
        let ids: Vec<ConnId> = waits.map(|(id, _)| id).collect();
        ids.into_iter().map(|id| (id, self.end_wait(id))).collect()
    }

    /// Takes the call that waits until this change comes out of the log, if a call of this
    /// connection does. It keeps its place if it then waits for the log again.
    pub(crate) fn take_awaiting(&mut self, id: ConnId, ticket: Ticket) -> Option<PendingCall> {
        let state = &mut self.open.get_mut(id)?.state;
        match std::mem::take(state) {
            CallState::Log(LogWait { what: Awaiting::Change(it, call), .. }) if it == ticket => {
                self.activate(id);
                return Some(call);
            }
            other => *state = other,
        }
        None
    }

    /// Like [`Self::end_wait`], but the place of the wait passes to another connection, on which
    /// the client asks for the same request.
    pub(crate) fn hand_over(&mut self, from: ConnId, to: ConnId) -> CallState {
        if self.open.contains_key(to)
            && let Some(place) = self.open.get_mut(from).and_then(|conn| conn.place.take())
        {
            self.open[to].place = Some(place);
            self.waits.insert(place, to);
        }
        self.end_wait(from)
    }

    /// The connection whose call waits for a grant of this request.
    pub(crate) fn waiter(&self, request: RequestId) -> Option<ConnId> {
        self.waits.get(&(Subject::Grant, request.0)).copied()
    }

    /// The calls that wait for a subject, in the order in which they began to wait.
    pub(crate) fn waits(&self, subject: Subject) -> impl Iterator<Item = (ConnId, &CallState)> {
        let waits = self.waits.range((subject, 0)..=(subject, u64::MAX));
        waits.filter_map(|(_, id)| Some((*id, &self.open.get(*id)?.state)))
    }

    /// The connections whose calls wait for a subject, in the same order.
    pub(crate) fn those(&self, subject: Subject) -> Vec<ConnId> {
        self.waits(subject).map(|(id, _)| id).collect()
    }

    /// The calls that wait for the log, in the order in which they began to wait.
    pub(crate) fn log_waits(&self) -> impl Iterator<Item = (ConnId, &LogWait)> {
        self.waits(Subject::Log).filter_map(|(id, state)| match state {
            CallState::Log(wait) => Some((id, wait)),
            _ => None,
        })
    }

    /// The connection whose call asks for the request with this tag, and waits for the log.
    pub(crate) fn asks_for(&self, tag: Tag) -> Option<(ConnId, &Arc<Request>)> {
        self.log_waits().find_map(|(id, wait)| match &wait.what {
            Awaiting::MembershipOf(it) | Awaiting::Change(_, PendingCall::Ask(it))
                if it.request.tag == tag =>
            {
                Some((id, &it.request))
            }
            _ => None,
        })
    }

    /// Whether there is work that does not depend on the kernel.
    pub(crate) fn has_work(&self) -> bool {
        self.reported.contains(&Source::LISTENER)
            || [&self.unheard, &self.disconnected, &self.active].iter().any(|it| !it.is_empty())
    }

    /// Waits until the kernel reports an event, also from sources that are not connections, or
    /// until `time` has passed; forever without a time. Returns whether there was an event.
    /// [`Self::read`] handles it.
    pub(crate) fn wait(&mut self, time: Option<Duration>) -> bool {
        if self.taken == 0 {
            self.taken = self.poller.wait(&mut self.events, time);
        }
        self.taken > 0
    }

    /// Reads the connections that the kernel reported to [`Self::wait`].
    pub(crate) fn read(&mut self) {
        for id in std::mem::take(&mut self.unheard) {
            self.read_one(id, EpollFlags::empty());
        }
        // These rounds suffice if each connection has one event. Clients that send without a pause
        // would cause ever more events.
        let mut rounds_left = self.open.len() / EVENTS_AT_ONCE + 2;
        while self.taken > 0 && rounds_left > 0 {
            rounds_left -= 1;
            let taken = std::mem::take(&mut self.taken);
            for at in 0..taken {
                let (number, flags) = (self.events[at].data(), self.events[at].events());
                if number < CONNECTIONS {
                    self.reported.insert(Source(number));
                    continue;
                }
                let id = KeyData::from_ffi(number).into();
                if flags.contains(EpollFlags::EPOLLOUT) {
                    self.get(id);
                }
                if flags.intersects(HEARS) {
                    self.read_one(id, flags);
                }
            }
            if taken == self.events.len() {
                // The buffer was full: there may be more.
                self.wait(Some(Duration::ZERO));
            }
        }
    }

    fn read_one(&mut self, id: ConnId, flags: EpollFlags) {
        let Some(conn) = self.open.get_mut(id) else { return };
        if conn.heard_end() {
            return;
        }
        conn.heard_at = clock::now();
        if conn.read(&mut self.buffer, flags.intersects(HANGS_UP)) {
            self.unheard.push(id);
        }
        if conn.heard_end() || conn.is_closing {
            self.disconnected.push(id);
        }
        self.activate(id);
        self.get(id);
    }

    /// Notes that the next call of a connection may be served, if there is one.
    pub(crate) fn activate(&mut self, id: ConnId) {
        if self.open.get(id).is_some_and(|conn| conn.is_ready()) {
            self.active.push(id);
        }
    }

    /// Makes [`Self::wait`] report a source whenever it becomes readable.
    pub(crate) fn await_source(&self, source: Source, fd: impl AsFd) -> io::Result<()> {
        self.poller.add(fd, source.0, BECOMES_READABLE)
    }

    /// Writes the queued output, as far as the clients read it, and closes finished connections.
    pub(crate) fn flush(&mut self) {
        // Iterates by index, so that the next turn reuses the allocation of the list.
        for at in 0..self.touched.len() {
            let id = self.touched[at];
            let Some(conn) = self.open.get_mut(id) else { continue };
            conn.touched = false;
            match conn.flush() {
                Err(_) => self.part(id),
                Ok(()) => self.settle_flushed(id),
            }
        }
        self.touched.clear();
    }

    fn settle_flushed(&mut self, id: ConnId) {
        let Some(conn) = self.open.get_mut(id) else { return };
        let flushed = conn.is_flushed();
        let is_answered_later = matches!(
            conn.state,
            CallState::Log(_)
                | CallState::Stores(..)
                | CallState::History
                | CallState::Configuration
        );
        let answered = conn.calls.is_empty() && !is_answered_later;
        let closes = conn.is_closing || conn.heard_end() && answered;
        if closes && flushed {
            return self.part(id);
        }
        if closes && self.closing.iter().all(|(_, other)| *other != id) {
            self.closing.push((clock::now() + CLOSING_TIME, id));
        }
        let flags = if flushed { READS } else { READS | EpollFlags::EPOLLOUT };
        if conn.watched_for == flags {
            return;
        }
        // Pending events are reported, too.
        let (number, is_new) = (id.data().as_ffi(), conn.watched_for.is_empty());
        let watch = if is_new { Poller::add } else { Poller::change };
        match watch(&self.poller, &*conn, number, flags) {
            Ok(()) => conn.watched_for = flags,
            Err(error) => {
                tracing::warn!(%error, "cannot watch a connection");
                self.part(id);
            }
        }
    }

    /// Closes a connection. If something in the table depends on it, the daemon first withdraws
    /// that, in the next turn.
    fn part(&mut self, id: ConnId) {
        let Some(conn) = self.open.get_mut(id) else { return };
        conn.is_closing = true;
        if !conn.holds_nothing() {
            self.disconnected.push(id);
            return;
        }
        if !conn.watched_for.is_empty() {
            self.poller.remove(&*conn);
        }
        if let Some(place) = conn.place {
            self.waits.remove(&place);
        }
        self.turned_away -= usize::from(conn.turned_away.is_some());
        if let Some(count) = self.of_users.get_mut(&conn.peer.uid) {
            *count -= 1;
        }
        self.open.remove(id);
    }

    /// Closes the connections that took too long to read their last reply. Returns when the next of
    /// them is due.
    pub(crate) fn close_slow(&mut self, now: Instant) -> Option<Instant> {
        while let Some((due, id)) = self.closing.first().copied() {
            if due > now {
                return Some(due);
            }
            self.closing.remove(0);
            self.part(id);
        }
        None
    }

    /// The connection on which a provisional grant depends.
    pub(crate) fn with_provisional(&self, request: RequestId) -> Option<ConnId> {
        let mut open = self.open.iter();
        open.find(|(_, conn)| conn.provisional.contains(&request)).map(|(id, _)| id)
    }

    /// Notes that the grant of this request, or every grant, no longer depends on a connection.
    pub(crate) fn disown(&mut self, request: Option<RequestId>) {
        let is_disowned = |other: &RequestId| request.is_none_or(|request| request == *other);
        for (_, conn) in &mut self.open {
            conn.provisional.retain(|other| !is_disowned(other));
            conn.untold.take_if(|other| is_disowned(other));
        }
    }
}

/// Sorts connections into the order in which they are served: users take turns, and the connections
/// of each user keep the order in which their calls arrived.
pub(crate) fn in_turns<U: Ord>(active: impl Iterator<Item = (U, ConnId)>) -> Vec<ConnId> {
    let mut rounds: Vec<(usize, U, ConnId)> = active.map(|(user, id)| (0, user, id)).collect();
    rounds.sort_by(|(_, user, _), (_, other, _)| user.cmp(other));
    for at in 1..rounds.len() {
        if rounds[at].1 == rounds[at - 1].1 {
            rounds[at].0 = rounds[at - 1].0 + 1;
        }
    }
    rounds.sort_by_key(|(round, ..)| *round);
    rounds.into_iter().map(|(.., id)| id).collect()
}

const BECOMES_READABLE: EpollFlags = EpollFlags::EPOLLIN.union(EpollFlags::EPOLLET);
const READS: EpollFlags =
    EpollFlags::EPOLLIN.union(EpollFlags::EPOLLRDHUP).union(EpollFlags::EPOLLET);
const HANGS_UP: EpollFlags =
    EpollFlags::EPOLLRDHUP.union(EpollFlags::EPOLLHUP).union(EpollFlags::EPOLLERR);
const HEARS: EpollFlags = EpollFlags::EPOLLIN.union(HANGS_UP);

/// The smallest number of a connection. The upper half counts how often the connection's slot was
/// used, from 1 on.
const CONNECTIONS: u64 = 1 << 32;

/// A source that exists once. The daemon handles it only when the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Source(u64);

impl Source {
    /// A client wants to connect.
    pub(crate) const LISTENER: Self = Self(0);
    /// Something in the daemon's directory was removed.
    pub(crate) const RUNTIME_DIR: Self = Self(1);
    /// A signal arrived.
    pub(crate) const SIGNALS: Self = Self(2);
    /// The boottime timer expired.
    pub(crate) const BOOTTIME_TIMER: Self = Self(3);
    /// The watcher has ended.
    pub(crate) const WATCHER: Self = Self(4);
    /// A process has ended, or a thread or the engine has an answer. The daemon checks these in
    /// each turn anyway.
    pub(crate) const WAKES: Self = Self(5);
}

/// Tracks how far the listener's queue was accepted since a lease expired.
#[derive(Debug, Default)]
pub(crate) struct AcceptBacklog {
    /// When the tracking began, in milliseconds of CLOCK_BOOTTIME.
    pub since: Option<u64>,
    pub accepted: usize,
}

impl AcceptBacklog {
    /// The time up to which the daemon has read every renewal that was sent, if it is known. While
    /// clients connect faster than the daemon accepts them, it waits only for the connections that
    /// were queued at the beginning.
    pub(crate) fn caught_up(&mut self, begun: u64, accepted: Accepted) -> Option<u64> {
        let since = *self.since.get_or_insert(begun);
        self.accepted += accepted.count;
        if accepted.more && self.accepted < QUEUED_CONNECTIONS_MAX {
            return None;
        }
        *self = Self::default();
        Some(since)
    }
}

/// The longest queue of a listener. This is sixteen times the default of `net.core.somaxconn`.
pub(crate) const QUEUED_CONNECTIONS_MAX: usize = 65_536;

/// The result of [`Server::accept`](crate::server::Server::accept).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Accepted {
    /// The number of connections taken from the queue.
    pub count: usize,
    /// Whether there may be more in the queue.
    pub more: bool,
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::net::connection::OUTPUT_BYTES_MAX;
    use crate::view::status_keys::Selection;

    fn peer() -> Credentials {
        Credentials { pid: 1, uid: 0, gid: 0 }
    }

    /// A connection, and its other end.
    fn open(conns: &mut Conns) -> (ConnId, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (conns.open(ours.into(), peer(), 0, None), theirs)
    }

    #[test]
    fn events_of_a_closed_connection_never_reach_the_next_one() {
        let mut conns = Conns::new().unwrap();
        let (before, _theirs) = open(&mut conns);
        conns.get(before).unwrap().is_closing = true;
        conns.disconnected.push(before);
        conns.closing.push((Instant::now(), before));
        conns.flush();
        assert!(conns.peek(before).is_none(), "it held nothing, and is closed");
        let (after, _theirs) = open(&mut conns);
        assert!(conns.peek(before).is_none());
        assert_ne!(before.data().as_ffi(), after.data().as_ffi());
        conns.close_slow(Instant::now());
        for disconnected in std::mem::take(&mut conns.disconnected) {
            assert!(conns.get(disconnected).is_none());
        }
        assert!(conns.peek(after).is_some());
    }

    #[test]
    fn a_connection_that_cannot_be_watched_is_closed_and_was_not_watched() {
        let mut conns = Conns::new().unwrap();
        let (id, _theirs) = open(&mut conns);
        // It is not removed at once, because a grant depends on it.
        conns.get(id).unwrap().provisional.push(RequestId(1));
        let mut flush = |fails, bytes| {
            conns.poller.fail(fails);
            let conn = conns.get(id).unwrap();
            conn.is_closing = false;
            conn.progress(&"x".repeat(bytes));
            conns.flush();
            let conn = conns.peek(id).unwrap();
            (conn.is_closing, conn.watched_for)
        };
        assert_eq!(flush(1, 0), (true, EpollFlags::empty()));
        assert_eq!(flush(0, 0), (false, READS));
        assert_eq!(flush(1, OUTPUT_BYTES_MAX), (true, READS), "the client does not read it all");
        let (other, _theirs) = open(&mut conns);
        conns.poller.fail(1);
        conns.get(other);
        conns.flush();
        assert!(conns.peek(other).is_none());
    }

    #[test]
    fn only_connections_that_are_idle_for_long_are_closed() {
        let mut conns = Conns::new().unwrap();
        let (mut ids, mut theirs) = (Vec::new(), Vec::new());
        for uid in [7, 7, 8] {
            let (ours, other) = UnixStream::pair().unwrap();
            let peer = Credentials { pid: 1, uid, gid: 0 };
            ids.push(conns.open(ours.into(), peer, 0, None));
            theirs.push(other);
        }
        let time = Duration::from_secs(60);
        let now = conns.peek(ids[0]).unwrap().heard_at + time;
        conns.set_state(ids[1], CallState::Watches(Selection::default()));
        conns.get(ids[2]).unwrap().heard_at = now;
        assert!(conns.close_idle(now, time));
        assert!(conns.peek(ids[0]).is_none());
        assert_eq!((conns.of_user(7), conns.of_user(8), conns.taken_in()), (1, 1, (2, 0)));
        assert!(!conns.close_idle(now + time, time * 2));
        assert!(!conns.close_idle(now + time, time), "it was looked just before");
        assert!(conns.close_idle(now + time * 2, time));
        assert_eq!((conns.of_user(7), conns.of_user(8)), (1, 0));
    }

    fn id(number: u64) -> ConnId {
        KeyData::from_ffi((1 << 32) | number).into()
    }

    #[test]
    fn a_user_with_many_connections_delays_each_other_user_by_one_call() {
        let flood = (0..1000).map(|at| (7, id(at)));
        let others = [(9, id(5000)), (8, id(6000)), (9, id(4000))];
        let ordered = in_turns(flood.chain(others));
        let ordered: Vec<u64> =
            ordered.iter().map(|id| id.data().as_ffi() & u64::from(u32::MAX)).collect();
        assert_eq!(ordered[..6], [0, 6000, 5000, 1, 4000, 2]);
        assert_eq!(ordered.len(), 1003);
        assert!(ordered[6..].is_sorted());
    }

    #[test]
    fn every_event_source_has_a_number_of_its_own() {
        let mut map = SlotMap::with_key();
        let mut ids: Vec<ConnId> = (0..3).map(|n| map.insert(n)).collect();
        for _ in 0..3 {
            map.remove(*ids.last().unwrap());
            ids.push(map.insert(0));
        }
        let of_ids = ids.iter().map(|id| id.data().as_ffi());
        let sources = [
            Source::LISTENER,
            Source::RUNTIME_DIR,
            Source::SIGNALS,
            Source::BOOTTIME_TIMER,
            Source::WATCHER,
            Source::WAKES,
        ];
        assert!(of_ids.clone().all(|number| number >= CONNECTIONS));
        assert!(sources.iter().all(|source| source.0 < CONNECTIONS));
        let numbers: BTreeSet<u64> = of_ids.chain(sources.map(|source| source.0)).collect();
        assert_eq!(numbers.len(), ids.len() + sources.len());
    }

    #[test]
    fn each_event_is_taken_once() {
        let mut conns = Conns::new().unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        conns.await_source(Source::BOOTTIME_TIMER, &ours).unwrap();
        theirs.write_all(b"x").unwrap();
        assert!(conns.wait(None));
        conns.read();
        assert!(!conns.reported.contains(&Source::RUNTIME_DIR));
        assert!(conns.reported.remove(&Source::BOOTTIME_TIMER));
        assert!(!conns.wait(Some(Duration::ZERO)));
        assert!(!conns.reported.remove(&Source::BOOTTIME_TIMER));
    }

    #[test]
    fn a_flood_of_connections_delays_the_end_of_a_lease_by_one_queue_at_most() {
        let mut accept_backlog = AcceptBacklog::default();
        let all = Accepted { count: 3, more: false };
        assert_eq!(accept_backlog.caught_up(10, all), Some(10));
        let part = Accepted { count: QUEUED_CONNECTIONS_MAX / 4, more: true };
        let ends = [20, 30, 40, 50, 60].map(|begun| accept_backlog.caught_up(begun, part));
        assert_eq!(ends, [None, None, None, Some(20), None]);
        assert_eq!(accept_backlog.caught_up(70, all), Some(60), "what came after 60 may be unread");
    }
}
