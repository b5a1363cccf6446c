//! Grants one part of a request over nodes, notes the progress of the whole request, and confirms
//! the part.
//!
//! Invariant: an unconfirmed part ends with its connection and with this daemon, and is never
//! written to storage that outlives a reboot. If several connections ask for the same part, it
//! depends on the newest: the client sent all messages on an older one before it lost that
//! connection. The client gets the answer to a confirmation only after the lease is durable.

use crate::calls::in_flight::Applied;
use crate::calls::parameters;
use crate::lease_deadlines::{Reported, name_of};
use crate::net::call_state::{CallState, PendingCall};
use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step};
use crate::server::requests::acquire::Part;
use crate::store::table_and_log::renewal_bytes;
use crate::wording::{bad, superseded};
use canal_core::{
    Above, CONFIRMED_TOKEN_MAX, Change, FrameId, NODES_MAX, Outcome, OverNodes, Owner, RequestId,
    Token, UnixMillis,
};
use canal_protocol::{
    Acquire, Collect, ConfirmAt, ConfirmedAt, ErrorName, Failure, LeaseAsked, NodesRefusal,
    REPORTED_NODES_MAX, Report,
};
use canal_sys::clock;
use canal_text::safe_text::one_line;

impl Server {
    pub(crate) fn collect(&mut self, caller: &mut Caller, collect: Collect) -> Result {
        self.check_node()?;
        self.check_list(&collect)?;
        self.check_ttl_over_nodes(collect.ttl_ms)?;
        let known = self.decide.table().tagged(collect.tag);
        if known.and_then(|it| self.decide.table().hold_of(it)).is_some_and(|it| !it.provisional) {
            return Err(bad("this part is already confirmed: renew it"));
        }
        if known.is_some_and(|it| self.belongs_to_newer(it, caller.id)) {
            return Err(superseded(ErrorName::Gone));
        }
        let spare = collect.spare;
        let over_nodes =
            OverNodes { run: collect.run, nodes: collect.nodes, require: collect.require, spare };
        let acquire = Acquire {
            tag: collect.tag,
            items: collect.items,
            wait_ms: if spare { Some(0) } else { collect.wait_ms },
            priority: collect.priority,
            max_waiting: collect.max_waiting,
            command: collect.command,
            note: collect.note,
            lease: Some(LeaseAsked { handle: collect.handle, ttl_ms: collect.ttl_ms }),
            under_run: collect.under_run,
            under: collect.under,
            ..Acquire::default()
        };
        let under_frame = collect.under_frame.map(|above| Above::Frame(above.node, above.frame));
        let part = Part { over_nodes: Box::new(over_nodes), under_frame };
        self.acquire(caller, Box::new(acquire), Some(part))
    }

    /// Checks whether a request to this node can have this list of nodes.
    fn check_list(&mut self, collect: &Collect) -> Result<()> {
        let nodes = &collect.nodes;
        if nodes.len() > NODES_MAX {
            let count = nodes.len();
            return Err(bad(format!("a request can name at most {NODES_MAX} nodes, not {count}")));
        }
        if nodes.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(bad("`nodes` must name each node once, in ascending order"));
        }
        let own = self.node_id()?;
        if !nodes.contains(&own) {
            return Err(bad(format!("`nodes` does not name this node, {own}")));
        }
        Ok(())
    }
}

/// The most bytes of the name of a node.
const NAME_BYTES_MAX: usize = 256;

/// Notes the progress of a whole request over nodes, as the client of its part reports it.
impl Server {
    pub(crate) fn report(&mut self, report: &Report) -> Result {
        let table = self.decide.table();
        let is_over_nodes = |frame: &FrameId| {
            let held = table.holds_in(*frame).map(|hold| &hold.asked);
            let waits = table.waiters_in(*frame).map(|waiter| &waiter.request);
            held.chain(waits).any(|asked| asked.over_nodes.is_some())
        };
        let Some(frame) = table.lease(name_of(report.handle)).filter(is_over_nodes) else {
            let message = "no request on nodes has this handle: it has ended, or never existed";
            return Err(Failure::new(ErrorName::Gone, message));
        };
        let names = &report.waits_for;
        if names.len() > REPORTED_NODES_MAX || names.iter().any(|it| it.len() > NAME_BYTES_MAX) {
            return Err(bad(format!(
                "`waits_for` can have at most {REPORTED_NODES_MAX} names of at most \
                 {NAME_BYTES_MAX} bytes"
            )));
        }
        let waits_for = names.iter().map(|name| one_line(name)).collect();
        let reported = Reported { held: report.held, waits_for };
        let before = self.leases.reported.insert(frame, reported.clone());
        self.due.changed |= before.is_none_or(|before| before != reported);
        Ok(Step::done())
    }
}

/// How far the token of a confirmation may be ahead of this machine's clock, in milliseconds: one
/// year. The clocks of machines that work together rarely differ that much.
const AHEAD_MS: u64 = 366 * 24 * 60 * 60 * 1000;

impl Server {
    pub(crate) fn confirm_at(&mut self, confirm: &ConfirmAt) -> Result {
        let table = self.decide.table();
        let owner = Owner::Lease(name_of(confirm.handle));
        // A grant that was not sent yet may still be taken back.
        let hold = table.hold_tagged(confirm.tag).filter(|hold| {
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
            return Err(bad(message));
        }
        if token > largest(table.globals().next_token, UnixMillis(clock::unix_ms())) {
            let message = format!(
                "token {token} is more than a year ahead of this machine's clock: either this \
                 clock is wrong, or another node's clock was wrong when its state was created"
            );
            return Err(bad(message).hint("compare `date` on all nodes"));
        }
        let note = parameters::new_note(confirm.note.as_deref())?;
        let note = note.filter(|note| **note != *hold.asked.note.as_deref().unwrap_or_default());
        self.reserve(renewal_bytes(note.as_deref()))?;
        let change = Change::ConfirmAt { request, token, note };
        Ok(Step::Propose(change, PendingCall::ConfirmAt(request)))
    }

    /// Answers a confirmation that was applied to the table.
    pub(crate) fn confirmed_at(&mut self, request: RequestId, applied: &Applied) -> Result {
        match applied.outcomes.first() {
            Some(Outcome::ConfirmedAt { token, .. }) => {
                self.conns.disown(request);
                if self.decide.ledger().is_untold_lease(*token) {
                    return Ok(Step::Wait(CallState::Stores(request, None)));
                }
                Ok(Step::reply(&ConfirmedAt { token: token.0 }))
            }
            Some(Outcome::NotConfirmed { least: Some(least) }) => {
                let message = format!(
                    "another lock on this node has that token; use {least} or a larger one"
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
