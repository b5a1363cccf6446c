//! Confirms one part of a request over nodes.
//!
//! Invariant: the client gets the answer to a confirmation only after the lease is durable.

use crate::calls::completion::{Applied, Completion};
use crate::calls::conn_id::ConnId;
use crate::calls::items;
use crate::server::Server;
use crate::server::dispatch::step::Step;
use crate::store::disk_full::disk_full;
use crate::waiters::leases::name_of;
use canal_core::{CONFIRMED_TOKEN_MAX, Change, Outcome, Owner, RequestId, Token, UnixMillis};
use canal_protocol::{ConfirmAt, ErrorName, Failure, NodesRefusal};
use canal_sys::clock;

/// How far the token of a confirmation may be ahead of this machine's clock, in milliseconds: one
/// year. The clocks of machines that work together rarely differ that much.
const AHEAD_MS: u64 = 366 * 24 * 60 * 60 * 1000;

impl Server {
    pub(crate) fn confirm_at(&mut self, id: ConnId, confirm: &ConfirmAt) -> Result<Step, Failure> {
        let table = &self.ledger.table;
        let known = table.tagged(confirm.tag).and_then(|request| table.hold_of(request));
        let owner = Owner::Lease(name_of(confirm.handle));
        // A grant that was not sent yet may still be taken back.
        let hold = known.filter(|hold| {
            hold.asked.owner == owner
                && hold.asked.over_nodes.is_some()
                && self.waiters.get(hold.request).is_none()
        });
        let Some(hold) = hold else { return Err(gone()) };
        let (request, token, least) = (hold.request, Token(confirm.token), hold.token);
        if token < least || confirm.token > CONFIRMED_TOKEN_MAX {
            let most = CONFIRMED_TOKEN_MAX;
            let message =
                format!("`token` must be at least {least} and at most {most}, not {token}");
            return Err(Failure::new(ErrorName::BadRequest, message));
        }
        if token > largest(table.next_token(), UnixMillis(clock::unix_ms())) {
            return Err(too_large(token));
        }
        let note = items::new_note(confirm.note.as_deref())?;
        let note = note.filter(|note| **note != *hold.asked.note.as_deref().unwrap_or_default());
        self.ledger.admit_renewal(note.as_deref()).map_err(|error| disk_full(&error))?;
        let change = Change::ConfirmAt { request, token, note };
        Ok(Step::Propose(change, Completion::ConfirmAt { id, request }))
    }

    /// Answers a confirmation that was applied to the table.
    pub(crate) fn confirmed_at(
        &mut self,
        request: RequestId,
        applied: &Applied,
    ) -> Result<Step, Failure> {
        match applied.outcomes.first() {
            Some(Outcome::ConfirmedAt { token, .. }) => {
                self.conns.disown(request);
                Ok(self.tell_confirmed(request, *token))
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

/// The largest token that a confirmation may give at this time. The tokens of nodes start from the
/// clock, so an honest one is close to it, or this node itself has reached it. Without this limit,
/// a user who may ask for one lease could use up all numbers, and this node could never confirm a
/// part again.
fn largest(next: Token, now: UnixMillis) -> Token {
    Token::by_clock(UnixMillis(now.0.saturating_add(AHEAD_MS))).max(next)
}

/// The failure for a token that is too far ahead of this machine's clock.
fn too_large(token: Token) -> Failure {
    let message = format!(
        "token {token} is more than a year ahead of this machine's clock: this clock is wrong, or \
         another node's was when its tokens began"
    );
    let mut failure = Failure::new(ErrorName::BadRequest, message);
    failure.hint = Some("compare `date` on all nodes".into());
    failure
}

/// The failure for a part that can no longer be confirmed.
fn gone() -> Failure {
    let message = "the hold to confirm was not granted, or has ended";
    Failure::new(ErrorName::Gone, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_may_be_a_year_ahead_of_the_clock_or_what_the_node_has_reached_itself() {
        let now = UnixMillis(1_800_000_000_000);
        let in_a_year = Token::by_clock(UnixMillis(now.0 + AHEAD_MS));
        assert_eq!(largest(Token(1), now), in_a_year);
        assert!(in_a_year.0 < CONFIRMED_TOKEN_MAX);
        // A clock that was set back does not stop the node's own tokens.
        let reached = Token(in_a_year.0 + 1);
        assert_eq!(largest(reached, now), reached);
        assert_eq!(largest(reached, UnixMillis(0)), reached);
    }
}
