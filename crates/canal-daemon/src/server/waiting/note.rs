//! Notes the decisions of the table.
//!
//! Invariant: a client that waits for a decision receives it. No client receives a decision about
//! the request of another host.

use crate::calls::conn_id::ConnId;
use crate::server::Server;
use crate::wording::refusal::{self, owner_gone};
use canal_core::{Granted, HoldState, Outcome, Refusal, RequestId};
use canal_protocol::{ErrorName, Failure};

/// The error for a client whose request was withdrawn for another reason.
pub(super) fn given_up() -> Failure {
    Failure::new(ErrorName::Fault, "the daemon gave up the request").hint("run the command again")
}

impl Server {
    /// Notes an outcome. The call that proposed the change handles its other consequences. Returns
    /// another call that the outcome ends, and the failure of that call.
    pub(crate) fn note(
        &mut self,
        outcome: &Outcome,
        owner_ended: bool,
    ) -> Option<(ConnId, Failure)> {
        match outcome {
            Outcome::Queued { request, .. } => {
                if let Some(waiter) = self.ledger.table.waiter(*request)
                    && waiter.request.host == self.ledger.host
                {
                    self.waiters.add(waiter, self.ledger.table.session(waiter.frame));
                }
            }
            Outcome::Granted(granted) if self.is_ours(granted) => {
                self.leases.begin(&self.ledger.table, self.ledger.host, granted.frame);
                self.waiters.queue_grant(granted.clone());
            }
            Outcome::Requeued { request, token } => {
                if let Some(waiter) = self.ledger.table.waiter(*request) {
                    self.leases.forget(waiter.frame);
                }
                self.waiters.requeued(*token);
                tracing::debug!(
                    request = request.0,
                    token = token.0,
                    "took back a grant before its client got it"
                );
            }
            Outcome::Refused { request, why } => return self.refuse_waiter(*request, why),
            Outcome::Withdrawn { request } => {
                let conn = self.waiters.ended(*request)?.conn?;
                return Some((conn, if owner_ended { owner_gone() } else { given_up() }));
            }
            Outcome::Released { token, frame, whole, .. } => {
                if *whole {
                    self.hold_ended(*token);
                    self.leases.forget(*frame);
                }
                tracing::debug!(token = token.0, session = %format_args!("s{frame}"), "released");
            }
            Outcome::FrameGone { frame } => {
                self.leases.forget_report(*frame);
                self.owners.rest(*frame);
            }
            Outcome::ConfirmedAt { token, .. } => {
                if let Some(frame) = self.ledger.table.hold(*token).map(|hold| hold.frame) {
                    self.leases.begin(&self.ledger.table, self.ledger.host, frame);
                }
            }
            Outcome::Renewed { frame, .. } => {
                self.leases.begin(&self.ledger.table, self.ledger.host, *frame);
            }
            Outcome::LeaseMoved { frame, .. } => {
                self.leases.begin(&self.ledger.table, self.ledger.host, *frame);
            }
            Outcome::Prioritized { request, .. } => {
                if let Some(waiter) = self.ledger.table.waiter(*request) {
                    self.waiters.replace_request(waiter);
                }
            }
            Outcome::NotHeld
            | Outcome::LeaseGone
            | Outcome::NotConfirmed { .. }
            | Outcome::Granted(_)
            | Outcome::Barrier { .. }
            | Outcome::ResizeRefused { .. }
            | Outcome::ResizeRefusedOverNodes
            | Outcome::Resized { .. }
            | Outcome::PauseStored { .. }
            | Outcome::ServiceStored { .. } => {}
        }
        None
    }

    /// Refuses a request that waited.
    fn refuse_waiter(&mut self, id: RequestId, why: &Refusal) -> Option<(ConnId, Failure)> {
        let waiter = self.waiters.ended(id)?;
        let conn = waiter.conn?;
        let uid = self.conns.peek(conn).map(|conn| conn.peer.uid);
        let viewer = uid.unwrap_or(waiter.asked.request.uid);
        match why {
            Refusal::Deadlock { cycle } => {
                return Some((conn, self.deadlock(viewer, cycle, &waiter.asked)));
            }
            Refusal::Superseded { by } => {
                return Some((conn, self.superseded_failure(viewer, *by)));
            }
            _ => {}
        }
        let item = refusal::item_of(why).and_then(|at| waiter.asked.request.items.get(at));
        let stored = item.and_then(|item| self.ledger.table.stored(&item.key));
        Some((conn, refusal::late_refusal(why, item, stored)))
    }

    /// Whether a grant is to a request of this host.
    fn is_ours(&self, granted: &Granted) -> bool {
        let host = self.ledger.host;
        let of = |hold: &HoldState| hold.asked.host == host;
        self.waiters.get(granted.request).is_some()
            || self.ledger.table.hold(granted.token).is_some_and(of)
    }
}
