//! Hosts: whose daemons watch owners, where many share one table.
//!
//! Invariant: the table never decides that a host is gone. That is an entry, and with it all that
//! its processes had is free, on every replica at the same place of the log.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::core::transition::effects::Misfit;
use crate::core::transition::worklist::Turn;
use crate::core::{
    Change, Entry, FrameId, HostId, Outcome, Owner, Table, Token, UnixMillis, WaiterStatus,
};

/// A host that has joined and is not gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostState {
    /// Which incarnation of it.
    pub id: HostId,
    /// The name that people know it by.
    pub label: String,
    /// Who it is, for people.
    pub identity: String,
    /// When it joined.
    pub since: UnixMillis,
}

impl Table {
    /// The hosts that have joined and are not gone, by id. None with an embedded journal.
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

    /// What entries about hosts change without any decision.
    pub(in crate::core) fn mark_hosts(&mut self, entry: &Entry) {
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
                for frame in self.processes_of(*host) {
                    self.mark_ended(frame);
                }
            }
            Change::HostAdopt { old, new } if self.can_adopt(*old, *new) => {
                self.hosts.remove(old);
                let frames: Vec<FrameId> = self.frames_of_host(*old).collect();
                for frame in frames {
                    self.move_frame(frame, *new);
                }
            }
            _ => {}
        }
    }

    /// A host that has frames of its own takes over nothing: two of them could have one owner.
    fn can_adopt(&self, old: HostId, new: HostId) -> bool {
        old != new && self.frames_of_host(new).next().is_none()
    }

    fn move_frame(&mut self, id: FrameId, host: HostId) {
        let Some(frame) = self.frames.get_mut(&id) else { return };
        if !frame.state.ended {
            self.owners.remove(frame.state.host, &frame.state.owner);
            self.owners.insert(host, &frame.state.owner, id);
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

    fn processes_of(&self, host: HostId) -> Vec<FrameId> {
        let frames = self.frames_of_host(host).filter_map(|id| self.frames.get(&id));
        let processes = frames.filter(|frame| matches!(frame.state.owner, Owner::Process(_)));
        processes.map(|frame| frame.state.id).collect()
    }

    /// Ends everything that lives only by the daemon of `host`, oldest frame first: all of its
    /// processes, also what is kept for their descendants; and what leases wait for or were
    /// granted and not told, because it is that daemon's connection that they wait on. Other
    /// leases move to `by`.
    pub(in crate::core) fn host_gone(&mut self, turn: &mut Turn<'_>, host: HostId, by: HostId) {
        let frames: Vec<FrameId> = self.frames_of_host(host).collect();
        for id in frames {
            let Some(frame) = self.frames.get(&id) else { continue };
            turn.touched.insert(id);
            let process = matches!(frame.state.owner, Owner::Process(_));
            let (waiters, holds) = (frame.waiters.clone(), frame.holds.clone());
            for request in waiters {
                self.decide(turn, Outcome::Withdrawn { request });
            }
            for token in holds {
                if process || self.is_provisional(token) {
                    self.release_whole(turn, token);
                }
            }
            let kept = self.frames.get(&id).is_some_and(|frame| !frame.holds.is_empty());
            if !process && kept {
                self.decide(turn, Outcome::LeaseMoved { frame: id, host: by });
            }
        }
        self.suspect_everyone(turn);
    }

    fn is_provisional(&self, token: Token) -> bool {
        self.holds.get(&token).is_some_and(|hold| hold.provisional)
    }

    /// Anybody may now wait for somebody whom they did not wait for before, or for themselves.
    pub(in crate::core) fn suspect_everyone(&self, turn: &mut Turn<'_>) {
        turn.suspect(self.waiters.keys().copied());
        turn.concerned().grown.extend(self.waiters.values().map(|waiter| waiter.frame));
    }

    pub(in crate::core) fn lease_moved(&mut self, id: FrameId, host: HostId) -> Result<(), Misfit> {
        let frame = self.frames.get_mut(&id).ok_or_else(|| format!("no frame {id}"))?;
        frame.state.host = host;
        Ok(())
    }
}
