//! Confirming one part of a request over nodes.
//!
//! Invariant: a confirmation is answered after the lease is durable.

use crate::core::{CONFIRMED_TOKEN_MAX, Change, Outcome, Owner, RequestId, Token};
use crate::daemon::calls::completion::{Applied, Completion};
use crate::daemon::calls::items;
use crate::daemon::calls::step::Step;
use crate::daemon::net::conn_id::ConnId;
use crate::daemon::server::Server;
use crate::daemon::view::wording::disk_full;
use crate::daemon::waiters::leases::name_of;
use crate::protocol::{ConfirmAt, ErrorName, Failure, NodesRefusal};

impl Server {
    pub(crate) fn confirm_at(&mut self, id: ConnId, confirm: &ConfirmAt) -> Result<Step, Failure> {
        let table = &self.ledger.table;
        let known = table.tagged(confirm.tag).and_then(|request| table.hold_of(request));
        let owner = Owner::Lease(name_of(confirm.handle));
        // A grant that was not sent yet may still be taken back untold.
        let hold = known.filter(|hold| {
            hold.asked.owner == owner
                && hold.asked.over_nodes.is_some()
                && self.waiters.get(hold.request).is_none()
        });
        let Some(hold) = hold else { return Err(gone()) };
        let (request, token, least) = (hold.request, Token(confirm.token), hold.token);
        if token < least || confirm.token > CONFIRMED_TOKEN_MAX {
            let most = CONFIRMED_TOKEN_MAX;
            let message = format!("`token` is at least {least} and at most {most}, not {token}");
            return Err(Failure::new(ErrorName::BadRequest, message));
        }
        let note = items::new_note(confirm.note.as_deref())?;
        let note = note.filter(|note| **note != *hold.asked.note.as_deref().unwrap_or_default());
        self.ledger.admit_renewal(note.as_deref()).map_err(|error| disk_full(&error))?;
        let change = Change::ConfirmAt { request, token, note };
        Ok(Step::Propose(change, Completion::ConfirmAt { id, request }))
    }

    /// A confirmation is in the table.
    pub(crate) fn confirmed_at(
        &mut self,
        id: ConnId,
        request: RequestId,
        applied: &Applied,
    ) -> Result<Step, Failure> {
        match applied.outcomes.first() {
            Some(Outcome::ConfirmedAt { token, .. }) => {
                self.conns.disown(request);
                Ok(self.tell_confirmed(id, request, *token))
            }
            Some(Outcome::NotConfirmed { least: Some(least) }) => {
                let message = format!(
                    "another lock of this node has that token: {least} and all larger ones are free"
                );
                let mut failure = Failure::new(ErrorName::TokenTaken, message);
                failure.nodes = Some(Box::new(NodesRefusal::Least { least: least.0 }));
                Err(failure)
            }
            _ => Err(gone()),
        }
    }
}

/// The failure for a part that cannot be confirmed any more.
fn gone() -> Failure {
    let message = "what was to be confirmed was not granted, or has ended";
    Failure::new(ErrorName::Gone, message)
}
