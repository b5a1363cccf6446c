//! Serves requests over nodes: this daemon is one of several independent daemons. It grants one
//! part of a request, notes the progress of the whole request, confirms the part, and reports the
//! waits that it knows near some runs to clients that look for deadlocks.
//!
//! Invariants: an unconfirmed part ends with its connection and with this daemon, and is never
//! written to storage that outlives a reboot. If several connections ask for the same part, it
//! depends on the newest: the client sent all messages on an older one before it lost that
//! connection. The client gets the answer to a confirmation only after the lease is durable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::calls::in_flight::Applied;
use crate::calls::parameters;
use crate::lease_deadlines::{Reported, name_of};
use crate::net::call_state::{CallState, PendingCall};
use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step};
use crate::server::requests::acquire::Part;
use crate::store::node_identity;
use crate::store::table_and_log::renewal_bytes;
use crate::wording::{bad, cannot, pid_of, superseded};
use canal_core::{
    Above, CONFIRMED_TOKEN_MAX, Change, FrameId, Key, NODES_MAX, NodeId, Outcome, OverNodes, Owner,
    Request, RequestId, RunId, Snapshot, Token, UnixMillis,
};
use canal_protocol::{
    Acquire, Collect, ConfirmAt, ConfirmedAt, ErrorName, Failure, FrameFound, FrameOfNode,
    KnownNode, LeaseAsked, NodeAt, NodeIdentity, NodesRefusal, PartFound, READ_NODES_MAX,
    REPORTED_NODES_MAX, Report, WAITS_NEAR_NAMES_MAX, WaitsFound, WaitsNear,
};
use canal_sys::clock;
use canal_text::duration::{milliseconds, stated};
use canal_text::safe_text::one_line;

/// The most bytes of the name of a node.
const NAME_BYTES_MAX: usize = 256;

/// How far the token of a confirmation may be ahead of this machine's clock, in milliseconds: one
/// year. The clocks of machines that work together rarely differ that much.
const AHEAD_MS: u64 = 366 * 24 * 60 * 60 * 1000;

/// The most frames, holds and waits of one answer to `WaitsNear`.
const FOUND_MAX: usize = 1_000;

/// The most bytes of the address of a node.
const ADDRESS_BYTES_MAX: usize = 512;

/// The most characters of a command in such an answer.
const COMMAND_CHARS_MAX: usize = 120;

impl Server {
    pub(crate) fn collect(&mut self, caller: &mut Caller, collect: Collect) -> Result {
        self.check_node()?;
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

    /// Notes the progress of a whole request over nodes, as the client of its part reports it.
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
                self.conns.disown(Some(request));
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

    pub(crate) fn identify(&mut self) -> Result {
        let place = self.options.place.dir.display().to_string();
        let uid = self.about.uid;
        let user = self.node.user.name(uid).map(str::to_owned);
        let (node, machine) = (self.node_id()?, node_identity::host_name());
        let identity = NodeIdentity {
            known: KnownNode { node, machine, place, uid, user },
            version: env!("CARGO_PKG_VERSION").to_owned(),
            lasting: self.node.is_lasting && !self.decide.is_shared(),
            grants_from_ms: self.node.left().map(milliseconds),
        };
        Ok(Step::reply(&identity))
    }

    /// The id of this node. A machine that has no name gets one, which is stored with the rest of
    /// the state.
    pub(crate) fn node_id(&mut self) -> Result<NodeId> {
        let machine = node_identity::machine_name();
        let machine = machine.map_or_else(|| self.decide.ledger_mut().machine_name(), Ok);
        let machine = machine.map_err(cannot("store the name of this machine"))?;
        Ok(node_identity::id(&machine, &self.options.place.dir, self.about.uid))
    }

    /// Whether this daemon may grant over nodes now.
    fn check_node(&self) -> Result<()> {
        let no_node = |why: &str, hint: &'static str| {
            let message = format!("this daemon is not a node: {why}");
            Err(Failure::new(ErrorName::NotLasting, message).hint(hint))
        };
        if self.decide.is_shared() {
            let hint = "leave out --on: hosts of one engine already share one table";
            return no_node("it has an engine", hint);
        }
        if !self.node.is_lasting {
            let hint = "put its state_directory (see `canal config`) on a disk";
            return no_node("its state is in memory, and would not survive a reboot", hint);
        }
        let Some(left) = self.node.left() else { return Ok(()) };
        let message = format!(
            "this daemon had to recreate its state, and will grant no node leases for another {}: \
             an earlier lease may still be valid",
            stated(Duration::from_secs(left.as_secs() + 1))
        );
        let mut failure = Failure::new(ErrorName::NotYet, message);
        failure.nodes = Some(Box::new(NodesRefusal::Later { left_ms: milliseconds(left) }));
        Err(failure)
    }

    /// Notes that every lease that this daemon may have granted before it had to create its state
    /// again has ended. From now on, the daemon knows all its leases.
    pub(crate) fn settle_node(&mut self) {
        match self.decide.ledger_mut().settle_node() {
            Ok(()) => tracing::info!("this daemon now grants node leases"),
            Err(error) => {
                tracing::warn!(%error, "cannot record that this daemon grants node leases");
            }
        }
    }

    pub(crate) fn waits_near(&mut self, caller: &Caller, asked: &WaitsNear) -> Result {
        let (id, uid) = (caller.id, caller.peer.uid);
        if self.decide.is_shared() {
            self.check_node()?;
        }
        if asked.runs.len().max(asked.frames.len()) > WAITS_NEAR_NAMES_MAX {
            return Err(bad(format!(
                "name at most {WAITS_NEAR_NAMES_MAX} runs and {WAITS_NEAR_NAMES_MAX} frames"
            )));
        }
        let is_long =
            |at: &NodeAt| at.address.as_ref().is_some_and(|it| it.len() > ADDRESS_BYTES_MAX);
        if asked.nodes.len() > READ_NODES_MAX || asked.nodes.iter().any(is_long) {
            return Err(bad(format!(
                "name at most {READ_NODES_MAX} nodes, with addresses of at most \
                 {ADDRESS_BYTES_MAX} bytes"
            )));
        }
        let runs: BTreeSet<RunId> = asked.runs.iter().copied().collect();
        let named = asked.frames.iter().copied();
        let near = self.decide.table().frames_near(&runs).into_iter().chain(named);
        let mut table = self.decide.table().partial_table(near);
        let found = table.frames.len() + table.holds.len() + table.waiters.len();
        if found > FOUND_MAX {
            let found = format!("the query found {found} connected frames, holds and waits");
            let message = format!("{found}; the limit is {FOUND_MAX}");
            return Err(Failure::new(ErrorName::TooMuch, message));
        }
        let restriction = self.conns.peek(id).and_then(|conn| conn.restriction.as_ref());
        if let Some(restriction) = restriction {
            keep_only(&mut table, |key| restriction.allows_key(Some(key)));
        }
        let frames = table.frames.iter().map(|frame| self.frame_found(uid, frame.id));
        let frames: Vec<FrameFound> = frames.collect();
        let seen: BTreeSet<FrameId> = match restriction {
            None => frames.iter().map(|it| it.frame).collect(),
            Some(_) => {
                let waiting = table.waiters.iter().map(|waiter| waiter.frame);
                table.holds.iter().map(|hold| hold.frame).chain(waiting).collect()
            }
        };
        let nodes = self.read_by_others(uid, frames.iter().filter(|it| seen.contains(&it.frame)));
        if let Some(conn) = self.conns.get(id) {
            conn.looks_near = Some(Box::new(asked.clone()));
        }
        let own = asked.tag.and_then(|tag| self.decide.table().tagged(tag));
        let request = own.filter(|id| self.decide.table().waiter(*id).is_some());
        Ok(Step::reply(&WaitsFound { node: self.node_id()?, table, frames, request, nodes }))
    }

    /// The nodes that other clients read while they look near these frames. A deadlock may extend
    /// to those nodes.
    fn read_by_others<'a>(
        &self,
        uid: u32,
        near: impl Iterator<Item = &'a FrameFound>,
    ) -> Vec<NodeAt> {
        let (mut runs, mut frames) = (BTreeSet::new(), BTreeSet::new());
        for found in near {
            frames.insert(found.frame);
            runs.extend(found.part_of.iter().map(|part| part.run).chain(found.under_run));
        }
        let mut nodes: BTreeMap<NodeId, Option<String>> = BTreeMap::new();
        let looking = self.conns.iter().filter_map(|(_, it)| Some((it, it.looks_near.as_deref()?)));
        for (conn, looks) in looking {
            let is_near = looks.runs.iter().any(|run| runs.contains(run))
                || looks.frames.iter().any(|frame| frames.contains(frame));
            for at in looks.nodes.iter().filter(|_| is_near) {
                // A client connects to every address that it learns, so this node passes on only
                // addresses from the same user.
                let address = at.address.clone().filter(|_| conn.peer.uid == uid);
                let known = nodes.entry(at.node).or_default();
                *known = known.take().or(address);
            }
        }
        let nodes = nodes.into_iter().take(READ_NODES_MAX);
        nodes.map(|(node, address)| NodeAt { node, address }).collect()
    }

    fn frame_found(&self, viewer: u32, frame: FrameId) -> FrameFound {
        let (table, shown) = (self.decide.table(), self.shown(viewer));
        let state = table.frame(frame);
        let uid = state.map_or(0, |state| state.uid);
        let holds = table.holds_in(frame).map(|hold| (&hold.asked, hold.provisional));
        let waiting = table.waiters_in(frame).map(|waiter| (&waiter.request, true));
        let all: Vec<_> = holds.chain(waiting).collect();
        let asked = || all.iter().map(|(asked, _)| *asked);
        let above = || asked().filter_map(|asked| asked.above.as_deref().copied());
        let command = |asked: &Arc<Request>| {
            let command = shown.command(uid, &asked.command.0)?;
            Some(command.chars().take(COMMAND_CHARS_MAX).collect())
        };
        let part_of = all.iter().find_map(|(asked, is_collecting)| {
            let OverNodes { run, nodes, require, spare } = asked.over_nodes.as_deref()?;
            let (nodes, loose) = (nodes.clone(), *spare && *is_collecting);
            Some(PartFound { run: *run, nodes, require: *require, loose })
        });
        FrameFound {
            frame,
            session: shown.session(frame),
            pid: state.map_or(0, |state| pid_of(&state.owner)),
            uid,
            command: asked().find_map(command),
            lease: state.is_some_and(|state| state.lease.is_some())
                || asked().any(|asked| asked.ttl_ms.is_some()),
            part_of,
            under_run: above()
                .find_map(|it| if let Above::Run(run) = it { Some(run) } else { None }),
            under_frame: above().find_map(|it| match it {
                Above::Frame(node, frame) => Some(FrameOfNode { node, frame }),
                Above::Run(_) => None,
            }),
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

/// Removes everything about other keys. Removed waits count as progress, so that no client sees a
/// deadlock where there is none.
fn keep_only(table: &mut Snapshot, may_see: impl Fn(&Key) -> bool) {
    table.settings.retain(|key, _| may_see(key));
    table.waiters.retain(|waiter| waiter.request.items.iter().all(|item| may_see(&item.key)));
    for hold in &mut table.holds {
        hold.items.retain(|item| may_see(&item.key));
        let mut items = hold.asked.items.clone();
        items.retain(|item| may_see(&item.key));
        hold.asked = Arc::new(Request { items, ..Request::clone(&hold.asked) });
    }
    table.holds.retain(|hold| !hold.items.is_empty());
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
