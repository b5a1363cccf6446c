//! Recovery of a table whose log may have lost entries. Nothing is granted until the table knows
//! what the lost entries may have granted.
//!
//! Invariant: a recovery depends only on entries, so it begins and ends at the same place in the
//! log on every host.

use std::collections::BTreeSet;

use crate::{Change, Entry, Globals, HostId, Recovery, Revision, Table, Token, UnixMillis};

impl Table {
    /// The recovery in progress, if there is one. Nothing is granted while it lasts.
    ///
    /// An engine that was restored from a backup, or whose standby was promoted too early, has a
    /// log without its last entries. A lock that a lost entry granted looks free, and its token
    /// would be issued again. So from the entry that reports this on, nothing is granted until
    ///
    /// - each host that the table knows has reported the tokens that it received
    ///   ([`Change::Present`]), or has ended; and
    /// - if entries may be missing, the longest TTL has passed: by then, a host that the table does
    ///   not know has stopped its commands.
    pub fn recovery(&self) -> Option<&Recovery> {
        self.globals.recovery.as_ref()
    }

    /// Whether a client may still learn of a grant with this token. If not, a lost entry may have
    /// granted the lock to another client: take the grant back ([`Change::Suspend`]) and request it
    /// again.
    pub fn may_be_told(&self, token: Token) -> bool {
        self.globals.recovery.is_none() && token >= self.globals.untold_below
    }
}

impl Globals {
    /// Applies the changes of recovery entries that need no decision.
    pub(crate) fn mark_recovery(&mut self, entry: &Entry) {
        match &entry.change {
            Change::Era { number, may_lack, floor } if *number > self.era => {
                self.era = *number;
                // Nothing can be missing before the first entry of a log.
                if self.revision > Revision(1) {
                    let hosts = self.hosts.keys().copied().collect();
                    self.recover(entry.at, hosts, may_lack.then_some(self.revision));
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
                self.remove_unheard(*host);
            }
            Change::HostGone { host, .. } => self.remove_unheard(*host),
            Change::HostAdopt { old, .. } => self.remove_unheard(*old),
            Change::TtlPassed { from } => {
                if let Some(recovery) = &mut self.recovery {
                    recovery.ttl_from.take_if(|since| since == from);
                }
            }
            _ => {}
        }
        let is_over = |it: &mut Recovery| it.unheard.is_empty() && it.ttl_from.is_none();
        self.recovery.take_if(is_over);
    }

    /// Begins a recovery, or extends the one in progress.
    fn recover(&mut self, since: UnixMillis, hosts: BTreeSet<HostId>, ttl_from: Option<Revision>) {
        let next_token = self.next_token;
        let begun = Recovery { since, unheard: BTreeSet::new(), ttl_from: None, next_token };
        let recovery = self.recovery.get_or_insert(begun);
        recovery.unheard.extend(hosts);
        if ttl_from.is_some() {
            self.untold_below = next_token;
        }
        // The latest entry counts: more entries may have been lost in the meantime.
        recovery.ttl_from = ttl_from.or(recovery.ttl_from);
    }

    fn remove_unheard(&mut self, host: HostId) {
        if let Some(recovery) = &mut self.recovery {
            recovery.unheard.remove(&host);
        }
    }
}
