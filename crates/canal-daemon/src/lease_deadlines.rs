//! The deadlines of leases that are not renewed, and the reports of their clients.
//!
//! Invariant: each lease of this host that holds something has one deadline, at least one TTL after
//! the grant, its last confirmation or renewal, or the start of this daemon. An unconfirmed part of
//! a request over nodes also ends with its connection, and each message of its client extends its
//! deadline.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha256};

use canal_core::{FrameId, HostId, LeaseId, Table};
use canal_protocol::Handle;
use canal_sys::clock;

/// The deadlines of leases, in milliseconds of CLOCK_BOOTTIME, which counts time in suspend.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    of: BTreeMap<FrameId, u64>,
    ends: BTreeSet<(u64, FrameId)>,
    /// The last reports of the clients of parts of requests over nodes.
    pub reported: BTreeMap<FrameId, Reported>,
    /// Why two requests over nodes need not share a node, as text, and until when operators see
    /// this note.
    apart: Option<(u64, String)>,
}

/// How long operators see the note about lists that need not share a node, in milliseconds.
const APART_MS: u64 = 3_600_000;

/// The progress of a request over nodes, as the client of one of its parts reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reported {
    /// The number of nodes that have granted it.
    pub held: u64,
    /// The names of the nodes that it waits for.
    pub waits_for: Vec<String>,
}

impl Leases {
    /// Notes that a request asked for a spare over a list that need not share a node with the list
    /// of another request.
    pub(crate) fn are_apart(&mut self, why: &str) {
        self.apart = Some((clock::boottime_ms() + APART_MS, why.to_owned()));
    }

    /// The note for operators about requests over nodes.
    pub(crate) fn note(&self) -> Option<String> {
        let (_, why) = self.apart.as_ref().filter(|(until, _)| clock::boottime_ms() < *until)?;
        Some(format!("commands on different nodes might run at the same time: {why}"))
    }

    /// Follows a table that replaces another one. Keeps the deadlines of leases that are in it. New
    /// leases have a full TTL from now: no client could renew them while no daemon ran.
    pub(crate) fn follow(&mut self, table: &Table, here: HostId) {
        let gone = self.of.keys().copied().filter(|id| table.frame(*id).is_none());
        gone.collect::<Vec<_>>().into_iter().for_each(|frame| self.forget(frame));
        for frame in table.frames() {
            if !self.of.contains_key(&frame.id) {
                self.begin(table, here, frame.id);
            }
        }
    }

    /// Starts the TTL of a lease now. A frame gets no deadline if it is not a lease, if it holds
    /// nothing, or if the daemon of another host than `here` is responsible for it.
    pub(crate) fn begin(&mut self, table: &Table, here: HostId, frame: FrameId) {
        let Some(state) = table.frame(frame) else { return };
        let Some(lease) = state.lease else { return };
        self.forget(frame);
        if state.host == here && table.holds_in(frame).next().is_some() {
            let ttl_ms = lease.ttl_ms;
            #[cfg(test)]
            let ttl_ms = if crate::sim::is_broken(crate::sim::Rule::LeasesLast) {
                ttl_ms / 2
            } else {
                ttl_ms
            };
            self.begin_for(frame, ttl_ms);
        }
    }

    /// Sets the deadline of a lease without one, in `left_ms` milliseconds.
    pub(crate) fn begin_for(&mut self, frame: FrameId, left_ms: u64) {
        let end = clock::boottime_ms_after(left_ms);
        self.of.insert(frame, end);
        self.ends.insert((end, frame));
    }

    pub(crate) fn forget(&mut self, frame: FrameId) {
        if let Some(end) = self.of.remove(&frame) {
            self.ends.remove(&(end, frame));
        }
    }

    /// The remaining time of a lease that holds something, in milliseconds.
    pub(crate) fn left_ms(&self, frame: FrameId) -> Option<u64> {
        self.of.get(&frame).map(|end| end.saturating_sub(clock::boottime_ms()))
    }

    /// When the next lease expires.
    pub(crate) fn next_end(&self) -> Option<u64> {
        self.ends.first().map(|(end, _)| *end)
    }

    /// A lease that has expired at `now`.
    pub(crate) fn over(&self, now: u64) -> Option<FrameId> {
        self.ends.first().filter(|(end, _)| *end <= now).map(|(_, frame)| *frame)
    }
}

/// The name of the lease of a handle. The table, the journal and other hosts know only the name.
pub(crate) fn name_of(handle: Handle) -> LeaseId {
    let hash = Sha256::digest(handle.bits().to_be_bytes());
    let half = hash.iter().take(16).fold(0, |bits, byte| bits << 8 | u128::from(*byte));
    LeaseId(half)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Leases {
        /// Makes every TTL expire.
        pub(crate) fn all_over(&mut self) {
            self.of.values_mut().for_each(|end| *end = 0);
            self.ends = self.of.keys().map(|frame| (0, *frame)).collect();
        }
    }

    #[test]
    fn a_lease_id_is_half_the_hash_of_its_handle() {
        // printf '\0...\xab\xcd' | sha256sum
        let name = name_of(Handle::new(0)).to_string();
        assert_eq!(name, "374708fff7719dd5979ec875d56cd228");
        assert_ne!(name_of(Handle::new(1)).to_string(), name);
    }
}
