//! Reports the waits that this node knows near some runs over nodes, to clients that look for
//! deadlocks.
//!
//! Invariant: a client learns nothing about keys that its connection may not ask for, and sees no
//! command that is hidden from its user.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::calls::conn_id::ConnId;
use crate::server::Server;
use crate::server::dispatch::step::Step;
use crate::wording::text::pid_of;
use canal_core::{Above, FrameId, Key, NodeId, Request, RunId, Snapshot};
use canal_protocol::{
    ErrorName, Failure, FrameFound, FrameOfNode, NodeAt, PartFound, READ_NODES_MAX,
    WAITS_NEAR_NAMES_MAX, WaitsFound, WaitsNear,
};
use canal_sys::peer::Credentials;

/// The most frames, holds and waits of one answer.
const FOUND_MAX: usize = 1_000;

/// The most bytes of the address of a node.
const ADDRESS_BYTES_MAX: usize = 512;

/// The most characters of a command in an answer.
const COMMAND_CHARS_MAX: usize = 120;

impl Server {
    pub(crate) fn waits_near(
        &mut self,
        id: ConnId,
        peer: Credentials,
        asked: &WaitsNear,
    ) -> Result<Step, Failure> {
        if self.cluster.is_some() {
            self.check_node()?;
        }
        if asked.runs.len().max(asked.frames.len()) > WAITS_NEAR_NAMES_MAX {
            let message = format!(
                "name at most {WAITS_NEAR_NAMES_MAX} runs and {WAITS_NEAR_NAMES_MAX} frames"
            );
            return Err(Failure::new(ErrorName::BadRequest, message));
        }
        let is_long =
            |at: &NodeAt| at.address.as_ref().is_some_and(|it| it.len() > ADDRESS_BYTES_MAX);
        if asked.nodes.len() > READ_NODES_MAX || asked.nodes.iter().any(is_long) {
            let message = format!(
                "name at most {READ_NODES_MAX} nodes, with addresses of at most \
                 {ADDRESS_BYTES_MAX} bytes"
            );
            return Err(Failure::new(ErrorName::BadRequest, message));
        }
        let runs: BTreeSet<RunId> = asked.runs.iter().copied().collect();
        let named = asked.frames.iter().copied();
        let near = self.ledger.table.frames_near(&runs).into_iter().chain(named);
        let mut table = self.ledger.table.excerpt(near);
        let found = table.frames.len() + table.holds.len() + table.waiters.len();
        if found > FOUND_MAX {
            let message =
                format!("{found} frames, holds and waits are near, more than {FOUND_MAX}");
            return Err(Failure::new(ErrorName::TooMuch, message));
        }
        let restriction = self.conns.peek(id).and_then(|conn| conn.restriction.as_ref());
        if let Some(restriction) = restriction {
            keep_only(&mut table, |key| restriction.allows_key(key));
        }
        let frames = table.frames.iter().map(|frame| self.frame_found(peer.uid, frame.id));
        let frames: Vec<FrameFound> = frames.collect();
        let seen: BTreeSet<FrameId> = match restriction {
            None => frames.iter().map(|it| it.frame).collect(),
            Some(_) => {
                let waiting = table.waiters.iter().map(|waiter| waiter.frame);
                table.holds.iter().map(|hold| hold.frame).chain(waiting).collect()
            }
        };
        let nodes = self.read_by_others(peer, frames.iter().filter(|it| seen.contains(&it.frame)));
        if let Some(conn) = self.conns.get(id) {
            conn.looks_near = Some(Box::new(asked.clone()));
        }
        let own = asked.tag.and_then(|tag| self.ledger.table.tagged(tag));
        let request = own.filter(|id| self.ledger.table.waiter(*id).is_some());
        Ok(Step::reply(&WaitsFound { node: self.node_id()?, table, frames, request, nodes }))
    }

    /// The nodes that other clients read while they look near these frames. A deadlock may extend
    /// to those nodes.
    fn read_by_others<'a>(
        &self,
        peer: Credentials,
        near: impl Iterator<Item = &'a FrameFound>,
    ) -> Vec<NodeAt> {
        let (mut runs, mut frames) = (BTreeSet::new(), BTreeSet::new());
        for found in near {
            frames.insert(found.frame);
            runs.extend(found.part_of.iter().map(|part| part.run).chain(found.under_run));
        }
        let mut nodes: BTreeMap<NodeId, Option<String>> = BTreeMap::new();
        for (conn, looks) in self.conns.looking() {
            let is_near = looks.runs.iter().any(|run| runs.contains(run))
                || looks.frames.iter().any(|frame| frames.contains(frame));
            for at in looks.nodes.iter().filter(|_| is_near) {
                // A client connects to every address that it learns, so this node passes on only
                // addresses from the same user.
                let address = at.address.clone().filter(|_| conn.peer.uid == peer.uid);
                let known = nodes.entry(at.node).or_default();
                *known = known.take().or(address);
            }
        }
        let nodes = nodes.into_iter().take(READ_NODES_MAX);
        nodes.map(|(node, address)| NodeAt { node, address }).collect()
    }

    fn frame_found(&self, viewer: u32, frame: FrameId) -> FrameFound {
        let (table, shown) = (&self.ledger.table, self.shown(viewer));
        let (uid, pid, is_lease) = table.frame(frame).map_or((0, 0, false), |state| {
            (state.uid, pid_of(&state.owner), state.lease.is_some())
        });
        let mut found = FrameFound::new(frame, shown.session(frame), pid, uid);
        found.lease = is_lease;
        let holds = table.holds_in(frame).map(|hold| (&hold.asked, hold.provisional));
        let waiting = table.waiters_in(frame).map(|waiter| (&waiter.request, true));
        for (asked, is_collecting) in holds.chain(waiting) {
            found.lease |= asked.ttl_ms.is_some();
            let command = || {
                let command = shown.command(uid, &asked.command.0)?;
                Some(command.chars().take(COMMAND_CHARS_MAX).collect())
            };
            found.command = found.command.or_else(command);
            found.part_of = found.part_of.or_else(|| {
                let over = asked.over_nodes.as_deref()?;
                Some(PartFound {
                    run: over.run,
                    nodes: over.nodes.clone(),
                    require: over.require,
                    loose: over.spare && is_collecting,
                })
            });
            match asked.above.as_deref() {
                Some(Above::Run(run)) => found.under_run = found.under_run.or(Some(*run)),
                Some(Above::Frame(node, frame)) => {
                    let (node, frame) = (*node, *frame);
                    found.under_frame = found.under_frame.or(Some(FrameOfNode { node, frame }));
                }
                None => {}
            }
        }
        found
    }
}

/// Removes everything about other keys. Removed waits count as progress, so that no client sees a
/// deadlock where there is none.
fn keep_only(table: &mut Snapshot, may_see: impl Fn(&Key) -> bool) {
    table.views.retain(|stored| may_see(&stored.key));
    table.paused.retain(&may_see);
    table.without.retain(|without| may_see(&without.key));
    table.waiters.retain(|waiter| waiter.request.items.iter().all(|item| may_see(&item.key)));
    for hold in &mut table.holds {
        hold.items.retain(|item| may_see(&item.key));
        let mut items = hold.asked.items.clone();
        items.retain(|item| may_see(&item.key));
        hold.asked = Arc::new(Request { items, ..Request::clone(&hold.asked) });
    }
    table.holds.retain(|hold| !hold.items.is_empty());
}
