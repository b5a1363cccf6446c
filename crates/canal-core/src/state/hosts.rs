//! Hosts, and the recovery of a table whose log may have lost entries.
//!
//! Each host's daemon watches over the owners on it, and all hosts share one table. During a
//! recovery, nothing is granted until the table knows what the lost entries may have granted.
//!
//! Invariant: the table never decides that a host is gone, and a recovery depends only on entries.
//! So everything that the host's processes had is freed, and a recovery begins and ends, at the same
//! place in the log on every host.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::table::owner_key;
use crate::{
    Change, Entry, FrameId, HostId, HostState, Owner, Recovery, Revision, Table, Token, UnixMillis,
    WaiterStatus,
};

impl Table {
    /// The hosts that have joined and are not gone, by id. Empty if the log is a local journal.
    pub fn hosts(&self) -> impl Iterator<Item = &HostState> {
        self.hosts.values()
    }

    /// A host that has joined and is not gone.
    #[must_use]
    pub fn host(&self, host: HostId) -> Option<&HostState> {
        self.hosts.get(&host)
    }

    /// The frames that the daemon of a host watches over, by id.
    pub fn frames_of_host(&self, host: HostId) -> impl Iterator<Item = FrameId> + '_ {
        self.frames.values().filter(move |f| f.state.host == host).map(|frame| frame.state.id)
    }

    /// Applies the changes of host entries that need no decision.
    pub(crate) fn mark_hosts(&mut self, entry: &Entry) {
        match &entry.change {
            Change::HostJoin { host, label, identity } => {
                self.hosts.entry(*host).or_insert_with(|| HostState {
                    id: *host,
                    label: label.clone(),
                    identity: identity.clone(),
                    since: entry.at,
                });
            }
            Change::HostGone { host, .. } => {
                self.hosts.remove(host);
                let frames = self.frames.values().map(|frame| &frame.state);
                let processes =
                    frames.filter(|it| it.host == *host && matches!(it.owner, Owner::Process(_)));
                let processes: Vec<FrameId> = processes.map(|it| it.id).collect();
                processes.into_iter().for_each(|frame| self.mark_ended(frame));
            }
            // A host that already has frames adopts none: one owner could then have two frames.
            Change::HostAdopt { old, new }
                if old != new && self.frames_of_host(*new).next().is_none() =>
            {
                self.hosts.remove(old);
                let frames: Vec<FrameId> = self.frames_of_host(*old).collect();
                frames.into_iter().for_each(|frame| self.move_frame(frame, *new));
            }
            _ => {}
        }
    }

    fn move_frame(&mut self, id: FrameId, host: HostId) {
        let Some(frame) = self.frames.get_mut(&id) else { return };
        if !frame.state.ended {
            self.owners.remove(&owner_key(frame.state.host, &frame.state.owner));
            self.owners.insert(owner_key(host, &frame.state.owner), id);
        }
        frame.state.host = host;
        for token in &frame.holds {
            if let Some(hold) = self.holds.get_mut(token) {
                Arc::make_mut(&mut Arc::make_mut(hold).asked).host = host;
            }
        }
        for request in frame.waiters.clone() {
            if let Some(waiter) = self.waiters.get_mut(&request) {
                Arc::make_mut(&mut waiter.request).host = host;
            }
            self.mark_waiter(request, WaiterStatus::Detached);
        }
    }

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
    #[must_use]
    pub fn recovery(&self) -> Option<&Recovery> {
        self.recovery.as_ref()
    }

    /// The number of the last era of the engine that the log names; 0 if it names none.
    #[must_use]
    pub fn era(&self) -> u64 {
        self.era
    }

    /// The longest TTL of any host so far, in milliseconds.
    #[must_use]
    pub fn longest_ttl_ms(&self) -> u64 {
        self.longest_ttl_ms
    }

    /// Whether a client may still learn of a grant with this token. If not, a lost entry may have
    /// granted the lock to another client: take the grant back ([`Change::Suspend`]) and request it
    /// again.
    #[must_use]
    pub fn may_be_told(&self, token: Token) -> bool {
        self.recovery.is_none() && token >= self.untold_below
    }

    /// Applies the changes of recovery entries that need no decision.
    pub(crate) fn mark_recovery(&mut self, entry: &Entry) {
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
        self.recovery.take_if(|recovery| recovery.is_over());
    }

    /// Begins a recovery, or extends the one in progress.
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
        // The latest entry counts: more entries may have been lost in the meantime.
        recovery.ttl_from = ttl_from.or(recovery.ttl_from);
    }

    fn remove_unheard(&mut self, host: HostId) {
        if let Some(recovery) = &mut self.recovery {
            recovery.unheard.remove(&host);
        }
    }
}
