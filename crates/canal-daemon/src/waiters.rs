//! The requests that wait, and the grants that remain to be sent.
//!
//! Invariant: each request of this host that waits, or whose grant remains to be sent, has one
//! entry; no other request has one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Instant;

use canal_core::{
    FrameId, Granted, HoldState, HostId, Request, RequestId, Table, UnixMillis, Wait, WaiterState,
};
use canal_protocol::EstimateInfo;
use canal_sys::clock;

/// The requests that wait, and the daemon's knowledge of them beyond the table.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    requests: BTreeMap<RequestId, Box<Waiter>>,
    /// The ends of the waits, in milliseconds of CLOCK_BOOTTIME.
    ends: BTreeSet<(u64, RequestId)>,
    /// How many requests of each user wait.
    users: BTreeMap<u32, usize>,
    /// Grants to requests that waited, in sending order.
    pub to_tell: VecDeque<Granted>,
    /// Waiters whose process was found stopped. Those of the previous daemon that run again have a
    /// time by which they must be back.
    pub stopped: BTreeMap<RequestId, Option<Instant>>,
    /// Provisional grants of the previous daemon that no client has confirmed yet.
    pub unclaimed: BTreeSet<RequestId>,
    /// Requests that began to wait in this turn.
    pub newcomers: Vec<RequestId>,
}

/// A request that waits.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    pub open: Open,
    /// The [`progress_hash`] of the message that was sent last.
    pub told: Option<u64>,
}

/// A request that waits or holds something. The daemon keeps it beyond its end in the table.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub asked: Arc<Request>,
    pub frame: FrameId,
    /// The outermost frame.
    pub session: FrameId,
    pub asked_at: UnixMillis,
    /// Its hold as it was granted; `None` if it waits.
    pub hold: Option<Arc<HoldState>>,
}

/// A hash of a progress message: of the position, the reason for the wait, and whether there is an
/// estimate, which counts down by itself. A hash suffices, because it is only kept to avoid sending
/// the same message twice to one of ten thousand clients.
pub(crate) fn progress_hash(position: usize, clause: &str, estimate: Option<&EstimateInfo>) -> u64 {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    hasher.hash_one((position, clause, estimate.is_some()))
}

impl Open {
    pub(crate) fn of_waiter(table: &Table, waiter: &WaiterState) -> Self {
        Self {
            asked: Arc::clone(&waiter.request),
            frame: waiter.frame,
            session: table.session(waiter.frame),
            asked_at: waiter.since,
            hold: None,
        }
    }

    pub(crate) fn of_hold(table: &Table, hold: &HoldState) -> Self {
        Self {
            asked: Arc::clone(&hold.asked),
            frame: hold.frame,
            session: table.session(hold.frame),
            asked_at: hold.asked_at,
            hold: table.hold_to_keep(hold.token),
        }
    }

    pub(crate) fn of(table: &Table, request: RequestId) -> Option<Self> {
        let waiter = table.waiter(request).map(|waiter| Self::of_waiter(table, waiter));
        waiter.or_else(|| table.hold_of(request).map(|hold| Self::of_hold(table, hold)))
    }

    /// A request that a host refused immediately. It may have a frame from an earlier request.
    pub(crate) fn refused_at_once(table: &Table, here: HostId, asked: &Arc<Request>) -> Self {
        let frame = table.frame_of(here, &asked.owner).or(asked.parent);
        Self {
            asked: Arc::clone(asked),
            frame: frame.unwrap_or_default(),
            session: frame.map(|frame| table.session(frame)).unwrap_or_default(),
            asked_at: UnixMillis(clock::unix_ms()),
            hold: None,
        }
    }

    /// When its hold began, or else when it was requested.
    pub(crate) fn begun_at(&self) -> UnixMillis {
        self.hold.as_ref().map_or(self.asked_at, |hold| hold.since)
    }

    /// The keys that it holds, or for which it waits.
    pub(crate) fn keys(&self) -> Vec<String> {
        match &self.hold {
            Some(hold) => hold.items.iter().map(|item| item.key.to_string()).collect(),
            None => self.asked.items.iter().map(|item| item.key.to_string()).collect(),
        }
    }

    /// When its wait expires, in milliseconds of CLOCK_BOOTTIME.
    fn until(&self) -> Option<u64> {
        if let Wait::Yes { until } = self.asked.wait { until } else { None }
    }
}

impl Waiters {
    /// Takes the waiters of a host from its table. They replace the previous ones.
    pub(crate) fn follow_table(&mut self, table: &Table, host: HostId) {
        (self.requests, self.ends, self.users) = Default::default();
        let own = table.waiters().filter(|waiter| waiter.request.host == host);
        own.for_each(|waiter| self.add(waiter.id, Open::of_waiter(table, waiter)));
    }

    /// Adds a request that waits, or that was granted and whose grant cannot be sent yet.
    pub(crate) fn add(&mut self, id: RequestId, open: Open) {
        let _ = self.remove(id);
        self.ends.extend(open.until().map(|until| (until, id)));
        *self.users.entry(open.asked.uid).or_default() += 1;
        self.requests.insert(id, Box::new(Waiter { open, told: None }));
    }

    /// Removes a request. The caller ends the call that waits for it.
    #[must_use = "a call may wait for it"]
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Waiter> {
        let waiter = self.requests.remove(&id)?;
        if let Some(until) = waiter.open.until() {
            self.ends.remove(&(until, id));
        }
        if let Some(count) = self.users.get_mut(&waiter.open.asked.uid) {
            *count -= 1;
            if *count == 0 {
                self.users.remove(&waiter.open.asked.uid);
            }
        }
        Some(*waiter)
    }

    pub(crate) fn get(&self, id: RequestId) -> Option<&Waiter> {
        self.requests.get(&id).map(Box::as_ref)
    }

    pub(crate) fn get_mut(&mut self, id: RequestId) -> Option<&mut Waiter> {
        self.requests.get_mut(&id).map(Box::as_mut)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (RequestId, &Waiter)> {
        self.requests.iter().map(|(id, waiter)| (*id, &**waiter))
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Notes that a client waits for the grant of a request.
    pub(crate) fn attach(&mut self, request: RequestId) {
        self.stopped.remove(&request);
        if let Some(waiter) = self.get_mut(request) {
            waiter.told = None;
        }
        self.newcomers.push(request);
    }

    /// Queues a grant that was decided earlier, unless it is already queued.
    pub(crate) fn queue_grant_again(&mut self, table: &Table, hold: &HoldState) {
        if !self.to_tell.iter().any(|other| other.token == hold.token) {
            self.to_tell.push_back(table.granted(hold));
        }
    }

    /// Forgets the grant of a request, because it is sent in another way or not at all.
    pub(crate) fn drop_grant(&mut self, request: RequestId) {
        self.to_tell.retain(|granted| granted.request != request);
    }

    /// Like [`Self::remove`], for a request that has ended in the table.
    #[must_use = "a call may wait for it"]
    pub(crate) fn ended(&mut self, request: RequestId) -> Option<Waiter> {
        self.stopped.remove(&request);
        self.remove(request)
    }

    /// How many requests of a user wait.
    pub(crate) fn of_user(&self, uid: u32) -> usize {
        self.users.get(&uid).copied().unwrap_or(0)
    }

    /// When the next wait expires.
    pub(crate) fn next_end(&self) -> Option<u64> {
        self.ends.first().map(|(until, _)| *until)
    }

    /// A request whose wait has expired at `now`.
    pub(crate) fn over(&self, now: u64) -> Option<RequestId> {
        self.ends.first().filter(|(until, _)| *until <= now).map(|(_, id)| *id)
    }
}
