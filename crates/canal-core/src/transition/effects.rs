//! Carries out outcomes.
//!
//! Deciding and replaying share this code. `Table::apply` records each decision as an [`Outcome`]
//! and carries it out with [`Table::carry_out`]. `Table::replay` carries out recorded outcomes and
//! decides nothing.

use std::sync::Arc;

use crate::model::InvalidOutcome;
use crate::{Change, Entry, Outcome, Table, WaiterState, WaiterStatus};

impl Table {
    /// Carries out one outcome of `entry`, which is applied at the table's current revision.
    pub(crate) fn carry_out(
        &mut self,
        entry: &Entry,
        outcome: &Outcome,
    ) -> Result<(), InvalidOutcome> {
        match outcome {
            Outcome::Queued { request, frame } => self.queue_up(entry, *request, *frame),
            Outcome::Granted(granted) => {
                let passed = self.passed_by(entry, granted)?;
                self.grant(entry, granted)?;
                self.count_pass(passed);
                Ok(())
            }
            Outcome::Refused { request, why } => {
                if self.waiters.contains_key(request) {
                    let waiter = self.remove_waiter(*request)?;
                    self.remember_superseded(waiter.request.tag, why);
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
            Outcome::Requeued { request, token } => self.revoke(*request, *token),
            Outcome::Barrier { request } => self.raise_barrier(*request),
            Outcome::Prioritized { request, .. } => self.prioritized(entry, *request),
            Outcome::Resized { .. } => self.store_view(entry),
            Outcome::PauseStored { .. } => self.store_pause(entry),
            Outcome::ServiceStored { .. } => self.store_service(entry),
            Outcome::FrameGone { frame } => self.drop_frame(*frame),
            Outcome::Renewed { frame, renewal } => self.renewed(entry, *frame, *renewal),
            Outcome::ConfirmedAt { was, token, .. } => self.confirmed_at(entry, *was, *token),
            Outcome::LeaseMoved { frame, host } => self.lease_moved(*frame, *host),
            Outcome::NotHeld
            | Outcome::LeaseGone
            | Outcome::NotConfirmed { .. }
            | Outcome::ResizeRefused { .. }
            | Outcome::ResizeRefusedOverNodes => Ok(()),
        }
    }

    /// Applies the changes of an entry that need no decision: flags of the things that it names.
    pub(crate) fn mark(&mut self, entry: &Entry) {
        match &entry.change {
            Change::Confirm { request } => {
                let token = self.granted.get(request);
                if let Some(hold) = token.and_then(|token| self.holds.get_mut(token))
                    && hold.asked.over_nodes.is_none()
                {
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
            | Change::ConfirmAt { .. }
            | Change::Withdraw { .. }
            | Change::Renew { .. }
            | Change::Expire { .. }
            | Change::Checkpoint { .. }
            | Change::Release(_)
            | Change::Resize { .. }
            | Change::Pause { .. }
            | Change::Prioritize { .. }
            | Change::Service { .. } => {}
        }
    }
}
