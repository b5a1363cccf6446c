//! The requests that wait: who is to be told, and until when.
//!
//! Invariant: there is one entry for each request of this host that waits, or was granted what it
//! asked for and is still to be told; and no other.

use std::collections::{BTreeMap, BTreeSet};

use super::conn::ConnId;
use super::shown::pid_of;
use crate::core::{
    FrameId, HoldState, HostId, Key, Mode, Request, RequestId, Table, UnixMillis, Wait, WaiterState,
};

/// The requests that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    requests: BTreeMap<RequestId, Waiter>,
    /// The ends of the waits, in milliseconds of CLOCK_BOOTTIME.
    ends: BTreeSet<(u64, RequestId)>,
    /// How many wait of each user.
    users: BTreeMap<u32, usize>,
}

/// A request that waits.
#[derive(Clone, Debug)]
pub(super) struct Waiter {
    until: Option<u64>,
    /// What it asked for: the table forgets it with the request.
    pub(super) asked: Asked,
    /// Who is to be told; nobody as long as it has not come back after a restart.
    pub(super) conn: Option<ConnId>,
    /// Whether it takes words of progress.
    pub(super) more: bool,
    /// What it was told last.
    pub(super) told: Option<(usize, String)>,
}

/// What is known of a request beyond its end.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) pid: u32,
    /// Whether it is for a lease and no process.
    pub(super) lease: bool,
    pub(super) uid: u32,
    pub(super) command: Box<str>,
    pub(super) session: FrameId,
    pub(super) since: UnixMillis,
    /// The keys and in which way, in the order of the items.
    pub(super) items: Box<[(Key, Mode)]>,
}

impl Asked {
    pub(super) fn of(request: &Request, session: FrameId, since: UnixMillis) -> Self {
        let items = request.items.iter().map(|item| (item.key.clone(), item.ask.mode()));
        Self {
            pid: pid_of(&request.owner),
            lease: request.ttl_ms.is_some(),
            uid: request.uid,
            command: request.command.0.as_str().into(),
            session,
            since,
            items: items.collect(),
        }
    }
}

impl Waiting {
    /// Those of a host.
    pub(super) fn of_table(table: &Table, host: HostId) -> Self {
        let mut waiting = Self::default();
        let own = table.waiters().filter(|waiter| waiter.request.host == host);
        own.for_each(|waiter| waiting.add(waiter, table.session(waiter.frame)));
        waiting
    }

    pub(super) fn add(&mut self, state: &WaiterState, session: FrameId) {
        self.insert(state.id, &state.request, session, state.since);
    }

    /// One that was granted what it asked for and cannot be told yet.
    pub(super) fn add_granted(&mut self, hold: &HoldState, session: FrameId, conn: ConnId) {
        self.insert(hold.request, &hold.asked, session, hold.asked_at);
        if let Some(waiter) = self.requests.get_mut(&hold.request) {
            waiter.conn = Some(conn);
        }
    }

    fn insert(&mut self, id: RequestId, request: &Request, session: FrameId, since: UnixMillis) {
        self.remove(id);
        let until = match request.wait {
            Wait::Yes { until } => until,
            Wait::No => None,
        };
        self.ends.extend(until.map(|until| (until, id)));
        let asked = Asked::of(request, session, since);
        *self.users.entry(asked.uid).or_default() += 1;
        let waiter = Waiter { until, asked, conn: None, more: false, told: None };
        self.requests.insert(id, waiter);
    }

    pub(super) fn remove(&mut self, id: RequestId) -> Option<Waiter> {
        let waiter = self.requests.remove(&id)?;
        if let Some(until) = waiter.until {
            self.ends.remove(&(until, id));
        }
        if let Some(count) = self.users.get_mut(&waiter.asked.uid) {
            *count -= 1;
            if *count == 0 {
                self.users.remove(&waiter.asked.uid);
            }
        }
        Some(waiter)
    }

    pub(super) fn get(&self, id: RequestId) -> Option<&Waiter> {
        self.requests.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: RequestId) -> Option<&mut Waiter> {
        self.requests.get_mut(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (RequestId, &Waiter)> {
        self.requests.iter().map(|(id, waiter)| (*id, waiter))
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// How many requests of a user wait.
    pub(super) fn of_user(&self, uid: u32) -> usize {
        self.users.get(&uid).copied().unwrap_or(0)
    }

    /// When the next wait is over.
    pub(super) fn next_end(&self) -> Option<u64> {
        self.ends.first().map(|(until, _)| *until)
    }

    /// A request whose wait is over at `now`.
    pub(super) fn over(&self, now: u64) -> Option<RequestId> {
        self.ends.first().filter(|(until, _)| *until <= now).map(|(_, id)| *id)
    }
}
