//! Reports the waits that this node knows near some runs over nodes, to clients that look for
//! deadlocks.
//!
//! Invariant: a client learns nothing about keys that its connection may not ask for, and sees no
//! command that is hidden from its user.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step};
use crate::wording::{bad, pid_of};
use canal_core::{Above, FrameId, Key, NodeId, OverNodes, Request, RunId, Snapshot};
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
    pub(crate) fn waits_near(&mut self, caller: &Caller, asked: &WaitsNear) -> Result {
        let (id, peer) = (caller.id, caller.peer);
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
            let message = format!(
                "the query found {found} connected frames, holds and waits; the limit is \
                 {FOUND_MAX}"
            );
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
        let own = asked.tag.and_then(|tag| self.decide.table().tagged(tag));
        let request = own.filter(|id| self.decide.table().waiter(*id).is_some());
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
        let looking = self.conns.iter().filter_map(|(_, it)| Some((it, it.looks_near.as_deref()?)));
        for (conn, looks) in looking {
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
        let (table, shown, state) =
            (self.decide.table(), self.shown(viewer), self.decide.table().frame(frame));
        let uid = state.map_or(0, |state| state.uid);
        let holds = table.holds_in(frame).map(|hold| (&hold.asked, hold.provisional));
        let waiting = table.waiters_in(frame).map(|waiter| (&waiter.request, true));
        let all: Vec<_> = holds.chain(waiting).collect();
        let asked = || all.iter().map(|(asked, _)| *asked);
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
            under_run: asked().find_map(|asked| match asked.above.as_deref()? {
                Above::Run(run) => Some(*run),
                Above::Frame(..) => None,
            }),
            under_frame: asked().find_map(|asked| match asked.above.as_deref()? {
                Above::Frame(node, frame) => Some(FrameOfNode { node: *node, frame: *frame }),
                Above::Run(_) => None,
            }),
        }
    }
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
