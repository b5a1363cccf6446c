//! The requests that wait: who is to be told, and until when.
//!
//! Invariant: there is one entry for each request of this host that waits, or was granted what it
//! asked for and is still to be told; and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

use crate::core::{
    FrameId, HoldState, HostId, Request, RequestId, Table, UnixMillis, Wait, WaiterState,
};
use crate::daemon::net::conn_id::ConnId;

/// The requests that wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    requests: BTreeMap<RequestId, Box<Waiter>>,
    /// The ends of the waits, in milliseconds of CLOCK_BOOTTIME.
    ends: BTreeSet<(u64, RequestId)>,
    /// How many wait of each user.
    users: BTreeMap<u32, usize>,
    /// Who was to be told of requests that were removed since this was asked last.
    removed: Vec<ConnId>,
}

/// A request that waits.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    /// What it asked for: the table forgets it with the request.
    pub(crate) asked: Asked,
    /// Who is to be told; nobody as long as it has not come back after a restart.
    pub(crate) conn: Option<ConnId>,
    /// Whether it takes words of progress.
    pub(crate) more: bool,
    /// What it was told last.
    pub(crate) told: Option<LastProgress>,
}

/// What is known of a request beyond its end.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) request: Arc<Request>,
    pub(crate) session: FrameId,
    pub(crate) since: UnixMillis,
}

/// What a waiter was told: its place, and a hash of why it waits. Ten thousand such words are
/// kept only to tell nobody the same twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastProgress(u64);

impl LastProgress {
    pub(crate) fn of(position: usize, clause: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        (position, clause).hash(&mut hasher);
        Self(hasher.finish())
    }
}

impl Asked {
    /// When its wait is over, in milliseconds of CLOCK_BOOTTIME.
    fn until(&self) -> Option<u64> {
        match self.request.wait {
            Wait::Yes { until } => until,
            Wait::No => None,
        }
    }
}

impl Waiting {
    /// Those of a host.
    pub(crate) fn of_table(table: &Table, host: HostId) -> Self {
        let mut waiting = Self::default();
        let own = table.waiters().filter(|waiter| waiter.request.host == host);
        own.for_each(|waiter| waiting.add(waiter, table.session(waiter.frame)));
        waiting
    }

    pub(crate) fn add(&mut self, state: &WaiterState, session: FrameId) {
        let request = state.request.clone();
        self.insert(state.id, Asked { request, session, since: state.since });
    }

    /// One that was granted what it asked for and cannot be told yet.
    pub(crate) fn add_granted(&mut self, hold: &HoldState, session: FrameId, conn: ConnId) {
        let request = hold.asked.clone();
        self.insert(hold.request, Asked { request, session, since: hold.asked_at });
        if let Some(waiter) = self.requests.get_mut(&hold.request) {
            waiter.conn = Some(conn);
        }
    }

    fn insert(&mut self, id: RequestId, asked: Asked) {
        self.remove(id);
        self.ends.extend(asked.until().map(|until| (until, id)));
        *self.users.entry(asked.request.uid).or_default() += 1;
        let waiter = Waiter { asked, conn: None, more: false, told: None };
        self.requests.insert(id, Box::new(waiter));
    }

    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Waiter> {
        let waiter = self.requests.remove(&id)?;
        if let Some(until) = waiter.asked.until() {
            self.ends.remove(&(until, id));
        }
        if let Some(count) = self.users.get_mut(&waiter.asked.request.uid) {
            *count -= 1;
            if *count == 0 {
                self.users.remove(&waiter.asked.request.uid);
            }
        }
        self.removed.extend(waiter.conn);
        Some(*waiter)
    }

    /// Who was to be told of the requests that were removed since the last call.
    pub(crate) fn take_removed(&mut self) -> std::vec::Drain<'_, ConnId> {
        self.removed.drain(..)
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

    /// How many requests of a user wait.
    pub(crate) fn of_user(&self, uid: u32) -> usize {
        self.users.get(&uid).copied().unwrap_or(0)
    }

    /// When the next wait is over.
    pub(crate) fn next_end(&self) -> Option<u64> {
        self.ends.first().map(|(until, _)| *until)
    }

    /// A request whose wait is over at `now`.
    pub(crate) fn over(&self, now: u64) -> Option<RequestId> {
        self.ends.first().filter(|(until, _)| *until <= now).map(|(_, id)| *id)
    }
}

/// Waiters that were found stopped before they came back. Of those that run again: when they have to
/// be back.
pub(crate) type AbsentWaiters = BTreeMap<RequestId, Option<Instant>>;
