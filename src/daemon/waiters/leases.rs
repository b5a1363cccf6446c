//! When leases end that are not renewed, and what their clients report of them.
//!
//! Invariant: each lease of this host that holds something has one deadline, never earlier than its
//! TTL after the grant, its last confirmation or renewal, or the start of this daemon. A part of a request over nodes
//! that is not confirmed ends with its connection, too, and its deadline moves on with each word of its client.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha256};

use crate::core::{FrameId, Granted, HoldState, HostId, LeaseId, RequestId, Table, Token};
use crate::daemon::calls::conn_id::ConnId;
use crate::protocol::Handle;
use crate::sys::clock;

/// When leases end, in milliseconds of CLOCK_BOOTTIME: time in suspend counts.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    of: BTreeMap<FrameId, u64>,
    ends: BTreeSet<(u64, FrameId)>,
    /// Of parts of requests over nodes: what their clients reported last.
    reported: BTreeMap<FrameId, Reported>,
    /// Which lists of nodes a request named last that need not meet those of another one, and until when
    /// people are told.
    apart: Option<(u64, String)>,
}

/// For how long people are told of lists that need not meet, in milliseconds.
const APART_MS: u64 = 3_600_000;

/// How far a request over nodes is, as the client of one of its parts reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reported {
    /// How many nodes have granted it.
    pub(crate) held: u64,
    /// The names of the nodes that it waits for.
    pub(crate) waits_for: Vec<String>,
}

impl Leases {
    /// A request asked for a spare over a list that need not meet that of another request.
    pub(crate) fn are_apart(&mut self, why: &str) {
        self.apart = Some((clock::boottime_ms() + APART_MS, why.to_owned()));
    }

    /// What people are to know of requests over nodes.
    pub(crate) fn note(&self) -> Option<String> {
        let (_, why) = self.apart.as_ref().filter(|(until, _)| clock::boottime_ms() < *until)?;
        Some(format!("commands over different nodes may not exclude each other: {why}"))
    }

    /// Every lease of a table that holds something, with a full TTL from now: no client could renew
    /// a lease while no daemon ran.
    pub(crate) fn of_table(table: &Table, here: HostId) -> Self {
        let mut leases = Self::default();
        table.frames().for_each(|frame| leases.begin(table, here, frame.id));
        leases
    }

    /// Follows a table that replaces another one. Keeps the deadlines of leases that are in it, and
    /// begins those of new leases.
    pub(crate) fn follow(&mut self, table: &Table, here: HostId) {
        let gone: Vec<FrameId> =
            self.of.keys().copied().filter(|id| table.frame(*id).is_none()).collect();
        gone.into_iter().for_each(|frame| self.forget(frame));
        for frame in table.frames().map(|frame| frame.id).collect::<Vec<_>>() {
            if !self.of.contains_key(&frame) {
                self.begin(table, here, frame);
            }
        }
    }

    /// The TTL of a lease begins to run now. A frame gets no deadline if it is no lease, if it
    /// holds nothing, or if the daemon of another host than `here` looks after it.
    pub(crate) fn begin(&mut self, table: &Table, here: HostId, frame: FrameId) {
        let Some(state) = table.frame(frame) else { return };
        let Some(lease) = state.lease else { return };
        self.forget(frame);
        if state.host == here && table.holds_in(frame).next().is_some() {
            let ttl_ms = lease.ttl_ms;
            #[cfg(test)]
            let ttl_ms = match crate::sim::is_broken(crate::sim::Rule::LeasesLast) {
                true => ttl_ms / 2,
                false => ttl_ms,
            };
            self.begin_for(frame, ttl_ms);
        }
    }

    /// A lease without a deadline ends in so many milliseconds.
    pub(crate) fn begin_for(&mut self, frame: FrameId, left_ms: u64) {
        let end = clock::boottime_ms_after(left_ms);
        self.of.insert(frame, end);
        self.ends.insert((end, frame));
    }

    /// The TTL of a lease runs from now on, if it has a deadline. The lease of which the table does not
    /// know the end yet has none.
    pub(crate) fn begin_anew(&mut self, table: &Table, here: HostId, frame: FrameId) {
        if self.of.contains_key(&frame) {
            self.begin(table, here, frame);
        }
    }

    pub(crate) fn forget(&mut self, frame: FrameId) {
        if let Some(end) = self.of.remove(&frame) {
            self.ends.remove(&(end, frame));
        }
    }

    /// Notes what the client of a part of a request over nodes reports. Returns whether that is new.
    pub(crate) fn report(&mut self, frame: FrameId, reported: Reported) -> bool {
        self.reported.insert(frame, reported.clone()).is_none_or(|before| before != reported)
    }

    /// What the client of a part of a request over nodes reported last.
    pub(crate) fn reported(&self, frame: FrameId) -> Option<&Reported> {
        self.reported.get(&frame)
    }

    /// Forgets what was reported of a frame that is gone.
    pub(crate) fn forget_report(&mut self, frame: FrameId) {
        self.reported.remove(&frame);
    }

    /// Lets every TTL run out.
    #[cfg(test)]
    pub(crate) fn all_over(&mut self) {
        self.of.values_mut().for_each(|end| *end = 0);
        self.ends = self.of.keys().map(|frame| (0, *frame)).collect();
    }

    /// How many milliseconds are left to a lease that holds something.
    pub(crate) fn left_ms(&self, frame: FrameId) -> Option<u64> {
        self.of.get(&frame).map(|end| end.saturating_sub(clock::boottime_ms()))
    }

    /// When the next lease ends.
    pub(crate) fn next_end(&self) -> Option<u64> {
        self.ends.first().map(|(end, _)| *end)
    }

    /// A lease whose time is over at `now`.
    pub(crate) fn over(&self, now: u64) -> Option<FrameId> {
        self.ends.first().filter(|(end, _)| *end <= now).map(|(_, frame)| *frame)
    }
}

/// The name of the lease of a handle: the table, the journal and other hosts know only the name.
pub(crate) fn name_of(handle: Handle) -> LeaseId {
    let hash = Sha256::digest(handle.bits().to_be_bytes());
    let half = hash.iter().take(16).fold(0, |bits, byte| bits << 8 | u128::from(*byte));
    LeaseId(half)
}

/// Whether a hold is a part of a request over nodes that is not confirmed yet.
pub(crate) fn is_collecting(hold: &HoldState) -> bool {
    hold.provisional && hold.asked.over_nodes.is_some()
}

/// The grant or the confirmation of a lease that is not sent yet.
#[derive(Debug)]
pub(crate) struct UnsyncedLease {
    pub(crate) conn: ConnId,
    pub(crate) request: RequestId,
    pub(crate) news: LeaseNews,
}

/// What a client is told once its lease is durable.
#[derive(Debug)]
pub(crate) enum LeaseNews {
    /// The grant as it was decided; `None` sends what is held by it now.
    Granted(Option<Granted>),
    /// The token with which its part of a request over nodes is confirmed.
    Confirmed(Token),
}

impl UnsyncedLease {
    /// Whether a connection waits for the grant of this request.
    pub(crate) fn is_of(&self, conn: ConnId, request: RequestId) -> bool {
        self.conn == conn && self.request == request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_id_is_half_the_hash_of_its_handle() {
        // printf '\0...\xab\xcd' | sha256sum
        let name = name_of(Handle::new(0)).to_string();
        assert_eq!(name, "374708fff7719dd5979ec875d56cd228");
        assert_ne!(name_of(Handle::new(1)).to_string(), name);
    }
}
