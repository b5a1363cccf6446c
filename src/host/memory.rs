//! What a host remembers beyond one incarnation: which tokens it told, and which history it read.

use super::Mark;
use super::chain::Chain;
use crate::core::{Change, HostId, Revision, Token, UnixMillis};

/// What outlives an incarnation, and, as far as the driver keeps it, a daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Which history the log had.
    pub epoch: Option<u128>,
    /// How far it was read.
    pub mark: Option<Mark>,
    /// The largest token that a client here was told for certain.
    pub told: Token,
    /// The largest token that a client here may have been told.
    pub bound: Token,
    /// Whether the log has lost what was read of it, and that was not said in the log yet.
    pub lost: bool,
}

impl Memory {
    /// The log has this history.
    pub(in crate::host) fn reads(&mut self, epoch: u128) {
        self.lost |= self.epoch.is_some_and(|before| before != epoch);
        self.epoch = Some(epoch);
    }

    pub(in crate::host) fn compare(&mut self, chain: &Chain) {
        self.lost |= self.mark.is_some_and(|mark| chain.contradicts(mark));
    }

    pub(in crate::host) fn present(&self, host: HostId, ttl_ms: u64, unix: UnixMillis) -> Change {
        let Self { told, bound, lost, .. } = *self;
        let (bound, floor) = (bound.max(told), Token::by_clock(unix));
        Change::Present { host, told, bound, lost, ttl_ms, floor }
    }
}

/// A recovery that waits until the longest TTL has passed.
#[derive(Clone, Copy, Debug)]
pub(in crate::host) struct Recovering {
    /// Since which entry.
    pub(in crate::host) from: Revision,
    /// When that was read.
    pub(in crate::host) since_ms: u64,
    pub(in crate::host) longest_ttl_ms: u64,
    /// Whether it was said that it has passed.
    pub(in crate::host) said: bool,
}
