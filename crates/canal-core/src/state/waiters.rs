//! Waiters: they are queued, leave, and change their status.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::nested_frames::with_parent;
use crate::{
    Change, Entry, FrameId, PastRequest, Refusal, Request, RequestId, Result, SUPERSEDED_MAX,
    Table, Tag, WaiterState, WaiterStatus, room_of,
};

impl Table {
    pub(crate) fn queue_up(&mut self, entry: &Entry, id: RequestId, frame: FrameId) -> Result {
        let asked = self.stored_form(self.asked(entry, id)?);
        self.open_frame(frame, &asked)?;
        let mut waiter = WaiterState {
            id,
            request: with_parent(asked, self.parent_of(frame)),
            frame,
            since: entry.at,
            status: WaiterStatus::Active,
            barrier: false,
            passed: 0,
            size_unchecked: false,
        };
        waiter.size_unchecked = self.awaits_resumption(&waiter);
        self.add_waiter(waiter)
    }

    pub(crate) fn asked<'e>(&self, entry: &'e Entry, id: RequestId) -> Result<&'e Arc<Request>> {
        match &entry.change {
            Change::Request(request) if id.0 == self.globals.revision.0 => Ok(request),
            _ => Err(format!("request {id} is unknown")),
        }
    }

    /// Adds a waiter whose frame exists.
    pub(crate) fn add_waiter(&mut self, waiter: WaiterState) -> Result {
        let (id, frame) = (waiter.id, waiter.frame);
        self.frame_mut(frame)?.waiters.insert(id);
        self.usage_mut(waiter.request.uid).key_bytes += room_of(&waiter.request.items);
        self.tags.insert(waiter.request.tag, id);
        if waiter.request.over_nodes.is_some() {
            self.over_nodes.insert(id);
        }
        self.waiters.insert(id, Box::new(waiter));
        self.enqueue(id);
        self.count_in_session(frame, 0, 1);
        Ok(())
    }

    /// Removes a waiter.
    pub(crate) fn remove_waiter(&mut self, id: RequestId) -> Result<WaiterState> {
        self.dequeue(id);
        let waiter =
            self.waiters.remove(&id).ok_or_else(|| format!("request {id} is not waiting"))?;
        self.usage_mut(waiter.request.uid).key_bytes -= room_of(&waiter.request.items);
        self.tags.remove(&waiter.request.tag);
        self.over_nodes.remove(&id);
        if let Some(frame) = self.frames.get_mut(&waiter.frame) {
            frame.waiters.remove(&id);
        }
        self.count_in_session(waiter.frame, 0, -1);
        self.bypass_exhausted.remove(&id);
        Ok(*waiter)
    }

    /// Remembers a superseded request, whose client may ask again before it receives the refusal.
    pub(crate) fn remember_superseded(&mut self, tag: Tag, why: &Refusal) {
        let Refusal::Superseded { by } = *why else { return };
        if self.globals.superseded.len() >= SUPERSEDED_MAX {
            self.globals.superseded.pop_front();
        }
        self.globals.superseded.push_back(PastRequest { tag, by });
    }

    /// Counts a grant that overtook some waiters. Each waiter has one count for all its items. A
    /// count for each queue would change with every resize, pause, stop and restart.
    pub(crate) fn count_pass(&mut self, passed: BTreeSet<RequestId>) {
        for id in passed {
            let Some(waiter) = self.waiters.get_mut(&id) else { continue };
            waiter.passed += 1;
            if waiter.passed >= self.globals.bypass_max {
                self.bypass_exhausted.insert(id);
            }
        }
    }

    pub(crate) fn mark_waiter(&mut self, id: RequestId, status: WaiterStatus) {
        let Some(waiter) = self.waiters.get(&id) else { return };
        let is_useless = status == WaiterStatus::Suspended && waiter.status != WaiterStatus::Active;
        if waiter.status != status && !is_useless {
            // Cannot fail: the waiter was just found.
            drop(self.requeue(id, |waiter| waiter.status = status));
        }
    }

    /// Changes a waiter, and its place in the queues of its keys.
    pub(crate) fn requeue(
        &mut self,
        id: RequestId,
        change: impl FnOnce(&mut WaiterState),
    ) -> Result {
        self.dequeue(id);
        let waiter = self.waiters.get_mut(&id);
        change(waiter.ok_or_else(|| format!("request {id} is not waiting"))?);
        self.enqueue(id);
        Ok(())
    }
}
