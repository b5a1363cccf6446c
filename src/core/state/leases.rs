//! Leases: frames that live by renewal, for owners that are no processes of a host.
//!
//! Invariant: the table never decides when a lease is over. That is an entry, and one that a
//! renewal came before changes nothing.

use serde::{Deserialize, Serialize};

use crate::core::transition::effects::Misfit;
use crate::core::transition::worklist::Turn;
use crate::core::{
    Change, Entry, FrameId, HostId, Key, LeaseId, Outcome, Owner, Refusal, Release, Request, Table,
    Token, UnixMillis,
};

/// So many of the leases that ended are remembered: who renews one that is gone asks soon, within a
/// TTL or so.
pub const PAST_LEASES_MAX: usize = 256;

/// What makes a frame a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseState {
    /// For how many milliseconds it lives without being renewed.
    pub ttl_ms: u64,
    /// How often it was renewed.
    #[serde(default)]
    pub renewals: u64,
    /// When it was renewed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewed: Option<UnixMillis>,
}

impl LeaseState {
    pub(in crate::core) fn new(ttl_ms: u64) -> Self {
        Self { ttl_ms, renewals: 0, renewed: None }
    }
}

/// A lease that held something and ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastLease {
    /// Which.
    pub lease: LeaseId,
    /// When.
    pub at: UnixMillis,
    /// Why.
    pub why: LeaseEnd,
    /// The token of what it held.
    pub token: Token,
    /// The first of the keys that it held.
    pub key: Key,
    /// How many more there were.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_keys: usize,
    /// For how long it would have lived without being renewed, in milliseconds.
    pub ttl_ms: u64,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseEnd {
    /// It was not renewed for its TTL.
    Expired,
    /// It was given back by its handle.
    Released,
    /// Somebody broke it by its token.
    Forced,
    /// Its asker was gone before it had confirmed.
    Withdrawn,
}

impl LeaseEnd {
    fn by(change: &Change) -> Self {
        match change {
            Change::Expire { .. } => Self::Expired,
            Change::Release(Release::Hold { forced: true, .. }) => Self::Forced,
            Change::Release(_) => Self::Released,
            _ => Self::Withdrawn,
        }
    }
}

impl Table {
    /// The frame of a lease that holds or waits, whichever host looks after it.
    #[must_use]
    pub fn lease(&self, lease: LeaseId) -> Option<FrameId> {
        self.frame_of(HostId::default(), &Owner::Lease(lease))
    }

    /// How a lease ended, if that is still remembered.
    #[must_use]
    pub fn past_lease(&self, lease: LeaseId) -> Option<&PastLease> {
        self.past_leases.iter().rev().find(|past| past.lease == lease)
    }

    /// What is wrong with a request as that of a lease.
    pub(in crate::core) fn fault_of_lease(&self, asked: &Request) -> Option<Refusal> {
        match (&asked.owner, asked.ttl_ms) {
            (Owner::Process(_), None) => None,
            (Owner::Lease(lease), Some(_)) if asked.parent.is_none() => {
                // One request in its life: so a lease that holds something never waits, and none
                // is ever in a deadlock.
                self.lease(*lease).map(|_| Refusal::Duplicate)
            }
            _ => Some(Refusal::Invalid { item: 0 }),
        }
    }

    pub(in crate::core) fn renew(&mut self, turn: &mut Turn<'_>, lease: LeaseId) {
        let frame = self.lease(lease).and_then(|id| self.frames.get(&id));
        let holding = frame.filter(|frame| !frame.holds.is_empty());
        let renewed = holding.and_then(|frame| Some((frame.state.id, frame.state.lease?.renewals)));
        let outcome = match renewed {
            Some((frame, before)) => Outcome::Renewed { frame, renewal: before + 1 },
            None => Outcome::LeaseGone,
        };
        self.decide(turn, outcome);
    }

    pub(in crate::core) fn renewed(
        &mut self,
        entry: &Entry,
        id: FrameId,
        renewal: u64,
    ) -> Result<(), Misfit> {
        let Change::Renew { host, .. } = &entry.change else {
            return Err("a lease was renewed by an entry that is no renewal".to_owned());
        };
        let frame = self.frames.get_mut(&id).ok_or_else(|| format!("no frame {id}"))?;
        let lease = frame.state.lease.as_mut().ok_or_else(|| format!("frame {id} is no lease"))?;
        lease.renewals = renewal;
        lease.renewed = Some(entry.at);
        frame.state.host = *host;
        Ok(())
    }

    pub(in crate::core) fn expire(&mut self, turn: &mut Turn<'_>, id: FrameId, renewal: u64) {
        let Some(frame) = self.frames.get(&id) else { return };
        if frame.state.lease.is_none_or(|lease| lease.renewals != renewal) {
            return;
        }
        for token in frame.holds.clone() {
            self.release_whole(turn, token);
        }
    }

    /// Notes how a lease ends that is about to give back what it holds.
    pub(in crate::core) fn remember_lease(&mut self, entry: &Entry, token: Token) {
        let Some(hold) = self.holds.get(&token) else { return };
        let Owner::Lease(lease) = hold.asked.owner else { return };
        let Some(item) = hold.items.first() else { return };
        let past = PastLease {
            lease,
            at: entry.at,
            why: LeaseEnd::by(&entry.change),
            token,
            key: item.key.clone(),
            more_keys: hold.items.len() - 1,
            ttl_ms: hold.asked.ttl_ms.unwrap_or(0),
        };
        if self.past_leases.len() >= PAST_LEASES_MAX {
            self.past_leases.pop_front();
        }
        self.past_leases.push_back(past);
    }
}
