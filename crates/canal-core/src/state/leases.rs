//! Leases: frames that live by renewal, for owners that are not processes of a host.
//!
//! Invariant: the table never decides that a lease has expired. An entry declares it, and changes
//! nothing if a renewal preceded it.

use std::sync::Arc;

use crate::{
    Change, Entry, FrameId, HostId, LeaseEnd, LeaseId, Owner, PastLease, Result, Table, Token,
};

/// The number of ended leases to remember. A client that renews an ended lease usually does so
/// within about one TTL.
pub(crate) const PAST_LEASES_MAX: usize = 256;

impl Table {
    /// The frame of a lease that holds or waits, whichever host watches over it.
    pub fn lease(&self, lease: LeaseId) -> Option<FrameId> {
        self.frame_of(HostId::default(), &Owner::Lease(lease))
    }

    /// How a lease ended, if that is still remembered.
    pub fn past_lease(&self, lease: LeaseId) -> Option<&PastLease> {
        self.globals.past_leases.iter().rev().find(|past| past.lease == lease)
    }

    pub(crate) fn renewed(&mut self, id: FrameId, renewal: u64, entry: &Entry) -> Result {
        let Change::Renew { host, note, ttl_ms, .. } = &entry.change else { return Ok(()) };
        let frame = self.frame_mut(id)?;
        let lease = frame.state.lease.as_mut();
        let lease = lease.ok_or_else(|| format!("frame {id} is not a lease"))?;
        lease.renewals = renewal;
        lease.renewed = Some(entry.at);
        lease.ttl_ms = ttl_ms.unwrap_or(lease.ttl_ms);
        frame.state.host = *host;
        for token in frame.holds.clone() {
            let Some(hold) = self.holds.get_mut(&token) else { continue };
            if ttl_ms.is_some() {
                Arc::make_mut(&mut Arc::make_mut(hold).asked).ttl_ms = *ttl_ms;
            }
            if let Some(note) = note {
                self.set_note(token, note);
            }
        }
        Ok(())
    }

    /// Makes the hold of a request over nodes firm, and sets its token.
    pub(crate) fn confirm_at(&mut self, was: Token, token: Token, note: Option<&str>) -> Result {
        if was != token {
            self.change_token(was, token)?;
        }
        let hold = self.holds.get_mut(&token).ok_or_else(|| format!("no hold {token}"))?;
        Arc::make_mut(hold).provisional = false;
        if let Some(note) = note {
            self.set_note(token, note);
        }
        self.globals.next_token = self.globals.next_token.max(Token(token.0.saturating_add(1)));
        Ok(())
    }

    /// Changes the token of a hold wherever the table uses it.
    fn change_token(&mut self, was: Token, token: Token) -> Result {
        if self.holds.contains_key(&token) {
            return Err(format!("another hold has token {token}"));
        }
        let mut hold = self.holds.remove(&was).ok_or_else(|| format!("no hold {was}"))?;
        Arc::make_mut(&mut hold).token = token;
        self.granted.insert(hold.request, token);
        for item in &hold.items {
            self.tree.change_token(&item.key, was, token);
        }
        if let Some(frame) = self.frames.get_mut(&hold.frame) {
            frame.holds.remove(&was);
            frame.holds.insert(token);
            for item in &hold.items {
                let Some(share) = frame.shares.get_mut(&item.key) else { continue };
                share.tokens.remove(&was);
                share.tokens.insert(token);
            }
        }
        self.holds.insert(token, hold);
        Ok(())
    }

    fn set_note(&mut self, token: Token, note: &str) {
        let Some(hold) = self.holds.get_mut(&token) else { return };
        let asked = &mut Arc::make_mut(hold).asked;
        Arc::make_mut(asked).note = (!note.is_empty()).then(|| note.into());
    }

    /// Remembers how a lease ends, just before it releases its hold.
    pub(crate) fn remember_lease(&mut self, entry: &Entry, token: Token) {
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
            uid: hold.asked.uid,
            command: hold.asked.command.clone(),
        };
        if self.globals.past_leases.len() >= PAST_LEASES_MAX {
            self.globals.past_leases.pop_front();
        }
        self.globals.past_leases.push_back(past);
    }
}
