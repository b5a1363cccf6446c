//! The host's current incarnation with its timers, the incarnations that claim its label, and the
//! memory that outlives it.
//!
//! A timer is the time in milliseconds of CLOCK_BOOTTIME at which something is due.

use std::collections::BTreeMap;

use super::batch_chain::Chain;
use super::{Mark, Timing};
use canal_core::{Change, HostId, Revision, Token, UnixMillis};
use canal_log::engine::{Call, Position, Sign};
use canal_sys::deadline_page::Deadline;

/// An incarnation that the engine gave this host.
#[derive(Debug, Default)]
pub(super) struct Incarnation {
    pub(super) host: HostId,
    pub(super) epoch: u128,
    pub(super) timing: Timing,
    /// When the last successful renewal was sent, or earlier. This host counts the TTL from this
    /// time.
    pub(super) since_ms: u64,
    pub(super) renewed_ms: Option<u64>,
    pub(super) renew: Option<u64>,
    /// The last batch in the log, as of the last renewal.
    pub(super) head: Position,
    pub(super) others: Others,
    /// The part of the log that was read.
    pub(super) chain: Chain,
    /// Whether the log was loaded once.
    pub(super) is_read: bool,
    /// The call for more of the log, and when it is made or repeated.
    pub(super) reading: Option<(Reading, u64)>,
    /// When the engine became reachable again, until a renewal sent since then is answered.
    pub(super) reconnected_ms: Option<u64>,
    /// The length of the log when it was first seen after the engine became reachable again.
    pub(super) head_then: Position,
}

/// Why a host calls for more of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// It loads the log.
    Loading,
    /// It confirms that the log is still the one that it read.
    Confirming,
    /// There are batches that it has not read.
    Behind,
}

impl Incarnation {
    /// When to stop commands unless a renewal succeeds. The incarnation is given up at `kill_at`. A
    /// renewal that succeeds between the two times moves both, and commands that survived TERM run
    /// on.
    pub(super) fn deadline(&self) -> Deadline {
        let Timing { ttl_ms, grace_ms, margin_ms, .. } = self.timing;
        let kill_at = (self.since_ms + ttl_ms).saturating_sub(margin_ms);
        let reached_at = self.renewed_ms.unwrap_or(0);
        Deadline { reached_at, term_at: kill_at.saturating_sub(grace_ms), kill_at }
    }

    /// The call that loads the log, to be repeated when due.
    pub(super) fn load(&mut self, now_ms: u64) -> Call {
        self.reading = Some((Reading::Loading, now_ms + self.timing.ttl_ms / 2));
        Call::Load
    }

    /// Whether the log is neither being loaded nor confirmed.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self.reading, None | Some((Reading::Behind, _)))
    }

    pub(super) fn is_loading(&self) -> bool {
        matches!(self.reading, Some((Reading::Loading, _)))
    }

    /// Ends this kind of reading.
    pub(super) fn has_read(&mut self, what: Reading) {
        self.reading.take_if(|(reading, _)| *reading == what);
    }
}

/// The incarnations with this host's label that had not ended when it registered.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// Earlier incarnations of this place, one of which this incarnation may adopt.
    pub(super) ours: Vec<HostId>,
    /// Incarnations that this host gave up, and those of an earlier boot of this machine. None of
    /// their commands lives once the host is clear.
    pub(super) dead: Vec<HostId>,
    /// Incarnations of other hosts: their identity, and the first sign seen of them.
    pub(super) foreign: BTreeMap<HostId, (String, Option<Sign>)>,
    /// The one that this incarnation adopts.
    pub(super) adopting: Option<HostId>,
}

/// What a host remembers across incarnations: the tokens that its clients received, and the history
/// that it read. It outlives the daemon too, if the driver stores it.
///
/// Of the tokens it remembers two numbers, certainly received and possibly received. With one
/// number, each crash of a daemon would look like lost entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// The history of the log.
    pub epoch: Option<u128>,
    /// How far the log was read.
    pub mark: Option<Mark>,
    /// The largest token that a client on this host certainly received.
    pub told: Token,
    /// The largest token that a client on this host may have received.
    pub bound: Token,
    /// Whether the log has lost entries that were read, and no entry of this host reports that yet.
    pub lost: bool,
}

impl Memory {
    /// The change that reports the received tokens.
    pub(super) fn present(&self, host: HostId, ttl_ms: u64, unix: UnixMillis) -> Change {
        let Self { told, bound, lost, .. } = *self;
        #[cfg(test)]
        let (told, bound) = crate::sim::unless_broken(
            crate::sim::Rule::ToldTokensAreReported,
            (told, bound),
            Default::default(),
        );
        let (bound, floor) = (bound.max(told), Token::by_clock(unix));
        Change::Present { host, told, bound, lost, ttl_ms, floor }
    }
}

/// A recovery that waits until the longest TTL has passed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recovering {
    /// The entry from which the recovery counts.
    pub(super) from: Revision,
    /// When this host read that entry.
    pub(super) since_ms: u64,
    /// Whether this host has proposed that the TTL has passed.
    pub(super) said: bool,
}
