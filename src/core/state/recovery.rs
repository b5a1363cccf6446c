//! Recovery of a table whose log may have lost entries: nothing is granted until it is known what was
//! granted by them.
//!
//! An engine that was restored from a backup, or whose standby was promoted too early, has a log
//! without its last entries. A lock that was granted by one of them looks free, and its token is
//! given out again. So from the entry that says so on, nothing is granted until
//!
//! - each host that the table knows has said which tokens it was told ([`Change::Present`]), or has
//!   ended; and
//! - if entries may be missing, the longest TTL has passed: a host that the table does not know has
//!   then stopped its commands.
//!
//! Invariant: a recovery depends on the entries alone, so it begins and ends at the same place of
//! the log on every replica.

use std::collections::BTreeSet;

use crate::core::{Change, Entry, HostId, Recovery, Revision, Table, Token, UnixMillis};

impl Table {
    /// The recovery that is under way, if one is: nothing is granted as long as it lasts.
    #[must_use]
    pub fn recovery(&self) -> Option<&Recovery> {
        self.recovery.as_ref()
    }

    /// The number of the last era of the engine that the log names; 0 if it names none.
    #[must_use]
    pub fn era(&self) -> u64 {
        self.era
    }

    /// The longest time to live of any host so far, in milliseconds.
    #[must_use]
    pub fn longest_ttl_ms(&self) -> u64 {
        self.longest_ttl_ms
    }

    /// Whether a grant that was not told yet may be told with this token. Of one that may not be,
    /// the entries that are lost may have given the lock to somebody else: it is to be taken back
    /// ([`Change::Suspend`]) and asked for again.
    #[must_use]
    pub fn may_be_told(&self, token: Token) -> bool {
        self.recovery.is_none() && token >= self.untold_below
    }

    /// What entries about lost history change without any decision.
    pub(in crate::core) fn mark_recovery(&mut self, entry: &Entry) {
        match &entry.change {
            Change::Era { number, may_lack, floor } if *number > self.era => {
                // Nothing can be missing before the first entry of a log.
                let begins = self.revision > Revision(1);
                self.era = *number;
                if begins {
                    let hosts = self.hosts.keys().copied().collect();
                    let from = may_lack.then_some(self.revision);
                    self.recover(entry.at, hosts, from);
                }
                self.next_token = self.next_token.max(*floor);
            }
            Change::Present { host, told, bound, lost, ttl_ms, floor } => {
                let next = self.recovery.as_ref().map_or(self.next_token, |it| it.next_token);
                if *lost || *told >= next {
                    self.recover(entry.at, BTreeSet::new(), Some(self.revision));
                    self.next_token = self.next_token.max(*floor);
                }
                let largest = Token((*told).max(*bound).0.saturating_add(1));
                self.next_token = self.next_token.max(largest);
                self.longest_ttl_ms = self.longest_ttl_ms.max(*ttl_ms);
                self.heard(*host);
            }
            Change::HostGone { host, .. } => self.heard(*host),
            Change::HostAdopt { old, .. } => self.heard(*old),
            Change::TtlPassed { from } => {
                if let Some(recovery) = &mut self.recovery {
                    recovery.ttl_from.take_if(|since| since == from);
                }
            }
            _ => {}
        }
        self.recovery.take_if(|recovery| recovery.is_over());
    }

    /// Begins a recovery, or adds to the one that is under way.
    fn recover(&mut self, at: UnixMillis, hosts: BTreeSet<HostId>, ttl_from: Option<Revision>) {
        let next_token = self.next_token;
        let recovery = self.recovery.get_or_insert_with(|| Recovery {
            since: at,
            unheard: BTreeSet::new(),
            ttl_from: None,
            next_token,
        });
        recovery.unheard.extend(hosts);
        if ttl_from.is_some() {
            self.untold_below = next_token;
        }
        // The latest: entries may have been lost once more meanwhile.
        recovery.ttl_from = ttl_from.or(recovery.ttl_from);
    }

    fn heard(&mut self, host: HostId) {
        if let Some(recovery) = &mut self.recovery {
            recovery.unheard.remove(&host);
        }
    }
}
