//! Joins the tables of several nodes into one.
//!
//! Each node keeps its own table, with its own rules, keys and order. They share only the frames of
//! runs over nodes. Such a frame has a part at each node. It ends at all of them when no request
//! waits in it, or in a frame inside it, at any of them. A request over nodes is one request that
//! waits at one or more nodes.

use std::collections::{BTreeMap, BTreeSet};

use canal_core::{
    Above, Diverged, FrameId, FrameState, NodeId, PartialTable, RequestId, Require, RunId,
    UnixMillis,
};
use canal_protocol::{FrameFound, PartFound, WaitsFound};

/// The name of something over all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name<T> {
    /// That of a run over nodes.
    Run(RunId),
    /// Any other, at one node.
    Plain(NodeId, T),
}

/// A frame, over all nodes.
pub type FrameName = Name<FrameId>;

/// A request that waits, over all nodes.
pub type RequestName = Name<RequestId>;

/// How a request gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It releases everything that it has collected so far, and asks again behind the others. Its
    /// command does not run yet, so the user does not notice.
    Surrender,
    /// It is refused, and its command does not run.
    Refusal,
}

/// The age of a request: the larger, the younger. The age of its session counts first.
pub(super) type Age = (UnixMillis, FrameName, UnixMillis, RequestName);

/// The joined tables of several nodes, from which parts were taken out.
#[derive(Clone, Debug)]
pub(super) struct Union<'a> {
    nodes: Vec<Node<'a>>,
    frames: BTreeMap<FrameName, Frame>,
    requests: BTreeMap<RequestName, Request>,
    /// When each session began, by its outermost frame.
    born: BTreeMap<FrameName, UnixMillis>,
}

/// A node and its table.
#[derive(Clone, Debug)]
pub(super) struct Node<'a> {
    pub(super) id: NodeId,
    pub(super) table: PartialTable,
    found: BTreeMap<FrameId, &'a FrameFound>,
}

/// A part at a node: the index of the node, and the node's own name for the part.
type At<T> = (usize, T);

#[derive(Clone, Debug, Default)]
struct Frame {
    parent: Option<FrameName>,
    parts: Vec<At<FrameId>>,
    /// How many requests wait in it, and in frames inside it.
    inside: usize,
    has_ended: bool,
}

#[derive(Clone, Debug)]
struct Request {
    frame: FrameName,
    parts: Vec<At<RequestId>>,
    /// How many parts must be granted; more than exist if the request gave way and asks again.
    least: usize,
    since: UnixMillis,
}

impl<'a> Node<'a> {
    fn of(reading: &'a WaitsFound) -> Result<Self, Diverged> {
        // A node takes back loose holds for any other request.
        let is_loose = |it: &&FrameFound| it.part_of.as_ref().is_some_and(|part| part.loose);
        let loose: BTreeSet<FrameId> =
            reading.frames.iter().filter(is_loose).map(|it| it.frame).collect();
        let mut table = reading.table.clone();
        table.holds.retain(|hold| !loose.contains(&hold.frame));
        let table = PartialTable::of(&table)?;
        let found = reading.frames.iter().map(|found| (found.frame, found)).collect();
        Ok(Self { id: reading.node, table, found })
    }

    fn part_of(&self, frame: FrameId) -> Option<&'a PartFound> {
        self.found.get(&frame)?.part_of.as_ref()
    }

    /// The name of a frame, over all nodes.
    pub(super) fn name_of(&self, frame: FrameId) -> FrameName {
        self.name_in(frame, frame)
    }

    /// The name of something in a frame, over all nodes.
    pub(super) fn name_in<T>(&self, frame: FrameId, own: T) -> Name<T> {
        self.part_of(frame).map_or(Name::Plain(self.id, own), |part_of| Name::Run(part_of.run))
    }

    /// The frame that encloses a frame, over all nodes.
    fn parent_of(&self, frame: &FrameState) -> Option<FrameName> {
        let inner = frame.parent.map(|parent| self.name_of(parent));
        match self.found.get(&frame.id).and_then(|found| found.above()) {
            // For its table, a lease within a process within a lease is within the outer lease.
            Some(Above::Frame(node, above)) if node == self.id => {
                let known = self.table.frame(above).filter(|above| above.uid == frame.uid);
                known.map(|known| self.name_of(known.id)).or(inner)
            }
            // The frame's own node knows whether it belongs to another user.
            Some(Above::Frame(node, above)) => Some(FrameName::Plain(node, above)),
            Some(Above::Run(run)) if inner.is_none() && !self.is_of_another_user(frame, run) => {
                Some(FrameName::Run(run))
            }
            _ => inner,
        }
    }

    /// Whether a run belongs to another user than a frame, as this node knows.
    fn is_of_another_user(&self, frame: &FrameState, run: RunId) -> bool {
        let is_of_run = |id| self.part_of(id).is_some_and(|part_of| part_of.run == run);
        self.table.frames().any(|other| is_of_run(other.id) && other.uid != frame.uid)
    }
}

impl<'a> Union<'a> {
    /// The union of the readings of several nodes.
    ///
    /// # Errors
    /// A reading contradicts itself.
    pub(super) fn of(readings: &'a [WaitsFound]) -> Result<Self, Diverged> {
        let nodes = readings.iter().map(Node::of).collect::<Result<_, _>>()?;
        let (frames, requests, born) = Default::default();
        let mut union = Self { nodes, frames, requests, born };
        for (at, node) in union.nodes.iter().enumerate() {
            for state in node.table.frames() {
                let name = node.name_of(state.id);
                let parent = node.parent_of(state).filter(|parent| *parent != name);
                let frame = union.frames.entry(name).or_default();
                frame.parent = frame.parent.or(parent);
                frame.parts.push((at, state.id));
            }
        }
        for at in 0..union.nodes.len() {
            union.add_requests(at);
        }
        let waited = union.requests.values().flat_map(|request| union.enclosing(request.frame));
        for frame in waited.collect::<Vec<_>>() {
            union.frames.entry(frame).or_default().inside += 1;
        }
        let mut births: Vec<(FrameName, UnixMillis)> = Vec::new();
        for (name, frame) in &union.frames {
            for (at, id) in &frame.parts {
                let holds = union.nodes[*at].table.holds_in(*id);
                births.extend(holds.map(|hold| (*name, hold.asked_at)));
            }
        }
        births.extend(union.requests.values().map(|request| (request.frame, request.since)));
        for (frame, at) in births {
            let born = union.born.entry(union.session(frame)).or_insert(at);
            *born = (*born).min(at);
        }
        Ok(union)
    }

    fn add_requests(&mut self, at: usize) {
        let node = &self.nodes[at];
        for waiter in node.table.waiters() {
            let name = node.name_in(waiter.frame, waiter.id);
            let request = self.requests.entry(name).or_insert_with(|| Request {
                frame: node.name_of(waiter.frame),
                parts: Vec::new(),
                least: 0,
                since: waiter.since,
            });
            request.parts.push((at, waiter.id));
            request.since = request.since.min(waiter.since);
            request.least = match node.part_of(waiter.frame) {
                Some(PartFound { require: Require::Any, nodes, .. }) => {
                    // A node where it does not wait may still grant it.
                    usize::from(request.parts.len() >= nodes.len())
                }
                _ => request.parts.len(),
            };
        }
    }

    /// A frame and the frames that enclose it, the innermost first. Clients claim which frame is
    /// under which, so the claims may form a circle; this cuts it.
    pub(super) fn enclosing(&self, frame: FrameName) -> Vec<FrameName> {
        let mut lineage = vec![frame];
        let parent = |name: &FrameName| self.frames.get(name)?.parent;
        while let Some(next) = lineage.last().and_then(parent) {
            if lineage.contains(&next) {
                break;
            }
            lineage.push(next);
        }
        lineage
    }

    /// The outermost frame around a frame, or the least of them if the claims of clients form a
    /// circle.
    fn session(&self, frame: FrameName) -> FrameName {
        let lineage = self.enclosing(frame);
        let outermost = lineage.last().copied().unwrap_or(frame);
        match self.frames.get(&outermost).and_then(|frame| frame.parent) {
            Some(_) => lineage.into_iter().min().unwrap_or(outermost),
            None => outermost,
        }
    }

    /// The requests that wait.
    pub(super) fn requests(&self) -> impl Iterator<Item = RequestName> {
        self.requests.keys().copied()
    }

    /// The frames in which a request waits, the innermost first.
    pub(super) fn frames_around(&self, request: RequestName) -> Vec<FrameName> {
        self.requests.get(&request).map_or_else(Vec::new, |it| self.enclosing(it.frame))
    }

    /// The waiting parts of a request: the node, and the name of the request there.
    pub(super) fn parts(
        &self,
        request: RequestName,
    ) -> impl Iterator<Item = (&Node<'a>, RequestId)> {
        let parts = self.requests.get(&request).into_iter().flat_map(|request| &request.parts);
        parts.map(|(at, id)| (&self.nodes[*at], *id))
    }

    /// The age of a request.
    pub(super) fn age(&self, request: RequestName) -> Option<Age> {
        let it = self.requests.get(&request)?;
        let session = self.session(it.frame);
        Some((*self.born.get(&session)?, session, it.since, request))
    }

    /// Lets everything continue that can.
    pub(super) fn reduce(&mut self) {
        loop {
            let mut moved = false;
            // Ends the frames in which no request waits.
            for frame in self.frames.values_mut().filter(|it| it.inside == 0 && !it.has_ended) {
                frame.has_ended = true;
                for (at, id) in &frame.parts {
                    moved |= self.nodes[*at].table.end_holds(*id);
                }
            }
            moved |= self.grant(PartialTable::can_be_granted);
            if !moved && !self.grant(|it, id| it.can_be_granted(id) || it.can_bypass(id)) {
                return;
            }
        }
    }

    /// Takes out the requests of which enough parts can be granted. Returns whether there were any.
    fn grant(&mut self, can: impl Fn(&PartialTable, RequestId) -> bool) -> bool {
        let enough = |request: &Request| {
            let granted = request.parts.iter().filter(|(at, id)| can(&self.nodes[*at].table, *id));
            granted.take(request.least).count() == request.least
        };
        let granted = self.requests.iter().filter(|(_, request)| enough(request));
        let granted: Vec<RequestName> = granted.map(|(name, _)| *name).collect();
        granted.iter().for_each(|request| self.answer(*request));
        !granted.is_empty()
    }

    /// Takes out a request that has its answer.
    fn answer(&mut self, name: RequestName) {
        let Some(request) = self.requests.remove(&name) else { return };
        for (at, id) in &request.parts {
            self.nodes[*at].table.remove_request(*id);
        }
        for frame in self.enclosing(request.frame) {
            if let Some(frame) = self.frames.get_mut(&frame) {
                frame.inside -= 1;
            }
        }
    }

    /// Releases everything that a request over nodes has collected, and lets it ask again behind
    /// all others.
    fn surrender(&mut self, name: RequestName) {
        let RequestName::Run(run) = name else { return };
        let Some(request) = self.requests.get_mut(&name) else { return };
        request.least = usize::MAX;
        for (at, id) in &request.parts {
            self.nodes[*at].table.remove_request(*id);
        }
        let Some(frame) = self.frames.get(&FrameName::Run(run)) else { return };
        for (at, id) in &frame.parts {
            self.nodes[*at].table.end_holds(*id);
        }
    }

    /// The other requests that could continue if this one gave way.
    pub(super) fn helped_by(&self, request: RequestName, way: Way) -> Vec<RequestName> {
        let mut without = self.clone();
        match way {
            Way::Surrender => without.surrender(request),
            Way::Refusal => without.answer(request),
        }
        without.reduce();
        let others = self.requests().filter(|other| *other != request);
        others.filter(|other| !without.requests.contains_key(other)).collect()
    }
}
