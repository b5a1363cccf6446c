//! What a host remembers across incarnations: the tokens that its clients received, and the history
//! that it read.
//!
//! Of the tokens it remembers two numbers, certainly received and possibly received. With one
//! number, each crash of a daemon would look like lost entries.

use super::Mark;
use super::chain::Chain;
use canal_core::{Change, HostId, Revision, Token, UnixMillis};

/// The memory that outlives an incarnation, and the daemon too, if the driver stores it.
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
    /// Records the history of the log.
    pub(in crate::host) fn reads(&mut self, epoch: u128) {
        self.lost |= self.epoch.is_some_and(|before| before != epoch);
        self.epoch = Some(epoch);
    }

    pub(in crate::host) fn compare(&mut self, chain: &Chain) {
        self.lost |= self.mark.is_some_and(|mark| chain.contradicts(mark));
    }

    pub(in crate::host) fn present(&self, host: HostId, ttl_ms: u64, unix: UnixMillis) -> Change {
        let Self { told, bound, lost, .. } = *self;
        #[cfg(test)]
        let (told, bound) = match crate::sim::is_broken(crate::sim::Rule::ToldTokensAreReported) {
            true => (Token(0), Token(0)),
            false => (told, bound),
        };
        let (bound, floor) = (bound.max(told), Token::by_clock(unix));
        Change::Present { host, told, bound, lost, ttl_ms, floor }
    }
}

/// A recovery that waits until the longest TTL has passed.
#[derive(Clone, Copy, Debug)]
pub(in crate::host) struct Recovering {
    /// The entry from which the recovery counts.
    pub(in crate::host) from: Revision,
    /// When this host read that entry.
    pub(in crate::host) since_ms: u64,
    pub(in crate::host) longest_ttl_ms: u64,
    /// Whether this host has proposed that the TTL has passed.
    pub(in crate::host) said: bool,
}
