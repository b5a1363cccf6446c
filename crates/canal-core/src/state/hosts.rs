//! Hosts: each host's daemon watches over the owners on it, and all hosts share one table.
//!
//! Invariant: the table never decides that a host is gone. An entry declares it, and frees
//! everything that the host's processes had, at the same place in the log on every host.

use std::sync::Arc;

use super::table::owner_key;
use crate::{Change, Entry, FrameId, HostId, HostState, Owner, Table, WaiterStatus};

impl Table {
    /// A host that has joined and is not gone.
    pub fn host(&self, host: HostId) -> Option<&HostState> {
        self.globals.hosts.get(&host)
    }

    /// The frames that the daemon of a host watches over, by id.
    pub fn frames_of_host(&self, host: HostId) -> impl Iterator<Item = FrameId> {
        self.frames.values().filter(move |f| f.state.host == host).map(|frame| frame.state.id)
    }

    /// Applies the changes of host entries that need no decision.
    pub(crate) fn mark_hosts(&mut self, entry: &Entry) {
        match &entry.change {
            Change::HostJoin { host, label, identity } => {
                let (id, label, identity) = (*host, label.clone(), identity.clone());
                let joined = HostState { id, label, identity, since: entry.at };
                self.globals.hosts.entry(id).or_insert(joined);
            }
            Change::HostGone { host, .. } => {
                self.globals.hosts.remove(host);
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
                self.globals.hosts.remove(old);
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
}
