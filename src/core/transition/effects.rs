//! Carrying out what was decided.
//!
//! Deciding and replaying both come through here: a decision is recorded as an [`Outcome`] and
//! carried out by [`Table::enact`], and a table that is rebuilt from a log carries out the recorded
//! outcomes and decides nothing.

use std::sync::Arc;

use crate::core::index::lock::Lock;
use crate::core::index::queue;
use crate::core::state::table::class;
use crate::core::{
    Change, Entry, Key, Mode, Outcome, Request, RequestId, Table, View, WaiterState, WaiterStatus,
};

/// Why an outcome cannot be carried out.
pub(in crate::core) type Misfit = String;

impl Table {
    /// Carries out one outcome of `entry`, which is applied at the table's current revision.
    pub(in crate::core) fn enact(
        &mut self,
        entry: &Entry,
        outcome: &Outcome,
    ) -> Result<(), Misfit> {
        match outcome {
            Outcome::Queued { request, frame } => self.queue_up(entry, *request, *frame),
            Outcome::Granted(granted) => self.grant(entry, granted),
            Outcome::Refused { request, .. } => {
                if self.waiters.contains_key(request) {
                    self.remove_waiter(*request)?;
                }
                Ok(())
            }
            Outcome::Withdrawn { request } => self.remove_waiter(*request).map(drop),
            Outcome::Released { token, keys, whole, .. } => {
                if *whole {
                    self.remember_lease(entry, *token);
                }
                self.give_back(*token, keys)
            }
            Outcome::Requeued { request, token } => self.take_back(*request, *token),
            Outcome::Barrier { request } => self.raise_barrier(*request),
            Outcome::Resized { .. } => self.store_view(entry),
            Outcome::FrameGone { frame } => self.drop_frame(*frame),
            Outcome::Renewed { frame, renewal } => self.renewed(entry, *frame, *renewal),
            Outcome::LeaseMoved { frame, host } => self.lease_moved(*frame, *host),
            Outcome::NotHeld | Outcome::LeaseGone | Outcome::ResizeRefused { .. } => Ok(()),
        }
    }

    /// Notes the use of a lock for each counted item of a request.
    pub(in crate::core) fn use_locks(&mut self, asked: &Request) {
        for item in asked.items.iter().filter(|item| item.ask.mode() == Mode::Counted) {
            self.tree.change_lock(&item.key, |lock| lock.use_by(&item.ask));
        }
    }

    pub(in crate::core) fn unuse(&mut self, key: &Key, mode: Mode) {
        if mode == Mode::Counted {
            self.tree.change_lock(key, Lock::unuse);
        }
    }

    fn store_view(&mut self, entry: &Entry) -> Result<(), Misfit> {
        let Change::Resize { key, view } = &entry.change else {
            return Err("a view was stored by an entry that is no resize".to_owned());
        };
        let waiters = self.served(key);
        for id in &waiters {
            self.save_overtaken(*id);
            self.dequeue(*id);
        }
        self.tree.change_lock(key, |lock| {
            lock.stored = *view;
            if lock.uses > 0 && view.is_some() {
                lock.own = *view;
            }
        });
        for id in &waiters {
            self.enqueue(*id);
        }
        Ok(())
    }

    pub(in crate::core) fn asked<'e>(
        &self,
        entry: &'e Entry,
        id: RequestId,
    ) -> Result<&'e Arc<Request>, Misfit> {
        match &entry.change {
            Change::Request(request) if id.0 == self.revision.0 => Ok(request),
            _ => Err(format!("request {id} is unknown")),
        }
    }

    /// What an entry changes without any decision: flags of what it names.
    pub(in crate::core) fn mark(&mut self, entry: &Entry) {
        match &entry.change {
            Change::Confirm { request } => {
                let token = self.granted.get(request);
                if let Some(hold) = token.and_then(|token| self.holds.get_mut(token)) {
                    Arc::make_mut(hold).provisional = false;
                }
            }
            Change::End { frame } => self.mark_ended(*frame),
            Change::Suspend { request } => self.mark_waiter(*request, WaiterStatus::Suspended),
            Change::Resume { request } => self.mark_waiter(*request, WaiterStatus::Active),
            Change::Detach { host } => {
                let on_host = |waiter: &&WaiterState| waiter.request.host == *host;
                let ids: Vec<_> = self.waiters().filter(on_host).map(|waiter| waiter.id).collect();
                for id in ids {
                    self.mark_waiter(id, WaiterStatus::Detached);
                }
            }
            Change::HostJoin { .. } | Change::HostGone { .. } | Change::HostAdopt { .. } => {
                self.mark_hosts(entry);
                self.mark_recovery(entry);
            }
            Change::Era { .. } | Change::Present { .. } | Change::TtlPassed { .. } => {
                self.mark_recovery(entry);
            }
            Change::Policy { bypass_max } => self.bypass_max = (*bypass_max).max(1),
            Change::Floor { token } => self.next_token = self.next_token.max(*token),
            Change::Request(_)
            | Change::Withdraw { .. }
            | Change::Renew { .. }
            | Change::Expire { .. }
            | Change::Checkpoint { .. }
            | Change::Release(_)
            | Change::Resize { .. } => {}
        }
    }

    /// The class of each item of a waiter, with its key.
    pub(in crate::core) fn classes<'a>(
        &'a self,
        request: &'a Request,
    ) -> impl Iterator<Item = (&'a Key, &'a Lock, queue::Class)> {
        request.items.iter().filter_map(|item| {
            let lock = self.tree.lock(&item.key)?;
            Some((&item.key, lock, class(lock, &item.ask)?))
        })
    }

    /// The view that a counted item of a key is measured by.
    pub(in crate::core) fn view_of(&self, key: &Key, stated: Option<View>) -> Option<View> {
        Lock::view_of(self.tree.lock(key), stated)
    }
}
