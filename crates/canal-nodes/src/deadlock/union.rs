//! Joins the tables of several nodes into one.
//!
//! Each node keeps its own table, with its own rules, keys and order. They share only the frames of
//! runs over nodes. Such a frame has a part at each node. It ends at all of them when no request
//! waits in it, or in a frame inside it, at any of them. A request over nodes is one request that
//! waits at one or more nodes.

use std::collections::BTreeMap;

use super::reading::{PartOf, Reading};
use super::ring::Way;
use super::ring::{FrameName, RequestName};
use canal_core::{
    Above, Diverged, FrameId, FrameState, NodeId, PartialTable, RequestId, Require, RunId,
    Snapshot, Table, UnixMillis,
};

/// The age of a request: the larger, the younger. The age of its session counts first.
pub(super) type Age = (UnixMillis, FrameName, UnixMillis, RequestName);

/// The joined tables of several nodes, from which parts were taken out.
#[derive(Clone, Debug)]
pub(super) struct Union {
    nodes: Vec<(NodeId, PartialTable)>,
    frames: BTreeMap<FrameName, Frame>,
    requests: BTreeMap<RequestName, Request>,
    /// When each session began, by its outermost frame.
    born: BTreeMap<FrameName, UnixMillis>,
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

impl Union {
    /// The union of the readings of several nodes.
    ///
    /// # Errors
    /// A reading contradicts itself.
    pub(super) fn of(readings: &[Reading]) -> Result<Self, Diverged> {
        let mut union = Self {
            nodes: Vec::new(),
            frames: BTreeMap::new(),
            requests: BTreeMap::new(),
            born: BTreeMap::new(),
        };
        for reading in readings {
            let partial_table = PartialTable::of(&without_loose_parts(reading))?;
            union.nodes.push((reading.node, partial_table));
        }
        for (at, reading) in readings.iter().enumerate() {
            union.add_frames(at, reading);
        }
        for (at, reading) in readings.iter().enumerate() {
            union.add_requests(at, reading);
        }
        union.count_inside();
        union.note_births();
        Ok(union)
    }

    fn add_frames(&mut self, at: usize, reading: &Reading) {
        let (node, partial_table) = &self.nodes[at];
        for state in partial_table.frames() {
            let (id, name) = (state.id, name_of(*node, state.id, reading));
            let parent = state.parent.map(|parent| name_of(*node, parent, reading));
            let under = reading.members.get(&id).and_then(|member| member.under);
            let above = || match under? {
                Above::Run(run) if is_of_another_user(reading, partial_table, state, run) => None,
                Above::Run(run) => Some(FrameName::Run(run)),
                // The frame's own node knows whether it belongs to another user.
                Above::Frame(at, above) if at == *node => (partial_table.frame(above))
                    .is_some_and(|above| above.uid == state.uid)
                    .then(|| name_of(at, above, reading)),
                Above::Frame(node, frame) => Some(FrameName::Plain(node, frame)),
            };
            // For its table, a lease within a process within a lease is within the outer lease.
            let parent = match under {
                Some(Above::Frame(..)) => above().or(parent),
                _ => parent.or_else(above),
            };
            let parent = parent.filter(|parent| *parent != name);
            let frame = self.frames.entry(name).or_default();
            frame.parent = frame.parent.or(parent);
            frame.parts.push((at, id));
        }
    }

    fn add_requests(&mut self, at: usize, reading: &Reading) {
        let (node, partial_table) = &self.nodes[at];
        for waiter in partial_table.waiters() {
            let part_of = part_of(reading, waiter.frame);
            let name = match part_of {
                Some(part_of) => RequestName::Run(part_of.run),
                None => RequestName::Plain(*node, waiter.id),
            };
            let request = self.requests.entry(name).or_insert_with(|| Request {
                frame: name_of(*node, waiter.frame, reading),
                parts: Vec::new(),
                least: 0,
                since: waiter.since,
            });
            request.parts.push((at, waiter.id));
            request.since = request.since.min(waiter.since);
            request.least = match part_of {
                Some(PartOf { require: Require::Any, nodes, .. }) => {
                    // A node where it does not wait may still grant it.
                    usize::from(request.parts.len() >= nodes.len())
                }
                _ => request.parts.len(),
            };
        }
    }

    fn count_inside(&mut self) {
        let waiting: Vec<FrameName> = self.requests.values().map(|request| request.frame).collect();
        for frame in waiting {
            for enclosing in self.enclosing(frame) {
                self.frames.entry(enclosing).or_default().inside += 1;
            }
        }
    }

    fn note_births(&mut self) {
        let mut births: Vec<(FrameName, UnixMillis)> = Vec::new();
        for (name, frame) in &self.frames {
            for (at, id) in &frame.parts {
                let partial_table = &self.nodes[*at].1;
                let holds = partial_table.holds_in(*id);
                births.extend(holds.map(|hold| (*name, hold.asked_at)));
            }
        }
        births.extend(self.requests.values().map(|request| (request.frame, request.since)));
        for (frame, at) in births {
            let born = self.born.entry(self.session(frame)).or_insert(at);
            *born = (*born).min(at);
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

    /// The waiting parts of a request: the node, its table, and the name of the request there.
    pub(super) fn parts(
        &self,
        request: RequestName,
    ) -> impl Iterator<Item = (NodeId, &PartialTable, RequestId)> {
        let parts = self.requests.get(&request).into_iter().flat_map(|request| &request.parts);
        parts.map(|(at, id)| (self.nodes[*at].0, &self.nodes[*at].1, *id))
    }

    /// The frame to which a node gave this number.
    pub(super) fn frame(&self, node: NodeId, frame: FrameId) -> Option<FrameName> {
        let here = |(at, id): &At<FrameId>| self.nodes[*at].0 == node && *id == frame;
        self.frames.iter().find(|(_, it)| it.parts.iter().any(here)).map(|(name, _)| *name)
    }

    /// The request to which a node gave this number.
    pub(super) fn request(&self, node: NodeId, request: RequestId) -> Option<RequestName> {
        let here = |(at, id): &At<RequestId>| self.nodes[*at].0 == node && *id == request;
        self.requests.iter().find(|(_, it)| it.parts.iter().any(here)).map(|(name, _)| *name)
    }

    /// The age of a request.
    pub(super) fn age(&self, request: RequestName) -> Option<Age> {
        let it = self.requests.get(&request)?;
        let session = self.session(it.frame);
        Some((*self.born.get(&session)?, session, it.since, request))
    }

    /// Whether the client of a request looks for deadlocks over nodes: it asks at several nodes, or
    /// under a run that does.
    pub(super) fn can_act(&self, request: RequestName) -> bool {
        self.frames_around(request).iter().any(|frame| matches!(frame, FrameName::Run(_)))
    }

    /// Lets everything continue that can.
    pub(super) fn reduce(&mut self) {
        loop {
            let ended = self.end_frames();
            let granted = self.grant(PartialTable::can_be_granted);
            let moved = ended || granted;
            if !moved && !self.grant(|it, id| it.can_be_granted(id) || it.can_bypass(id)) {
                return;
            }
        }
    }

    /// Ends the frames in which no request waits. Returns whether that changed a table.
    fn end_frames(&mut self) -> bool {
        let mut ended = false;
        for frame in self.frames.values_mut().filter(|it| it.inside == 0 && !it.has_ended) {
            frame.has_ended = true;
            for (at, id) in &frame.parts {
                ended |= self.nodes[*at].1.end_holds(*id);
            }
        }
        ended
    }

    /// Takes out the requests of which enough parts can be granted. Returns whether there were any.
    fn grant(&mut self, can: impl Fn(&PartialTable, RequestId) -> bool) -> bool {
        let enough = |request: &Request| {
            let granted = request.parts.iter().filter(|(at, id)| can(&self.nodes[*at].1, *id));
            granted.take(request.least).count() == request.least
        };
        let granted = self.requests.iter().filter(|(_, request)| enough(request));
        let granted: Vec<RequestName> = granted.map(|(name, _)| *name).collect();
        for request in &granted {
            self.answer(*request);
        }
        !granted.is_empty()
    }

    /// Takes out a request that has its answer.
    fn answer(&mut self, name: RequestName) {
        let Some(request) = self.requests.remove(&name) else { return };
        for (at, id) in &request.parts {
            self.nodes[*at].1.remove_request(*id);
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
            self.nodes[*at].1.remove_request(*id);
        }
        let Some(frame) = self.frames.get(&FrameName::Run(run)) else { return };
        for (at, id) in &frame.parts {
            self.nodes[*at].1.end_holds(*id);
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

/// The name of a frame of a node.
fn name_of(node: NodeId, frame: FrameId, reading: &Reading) -> FrameName {
    match part_of(reading, frame) {
        Some(part_of) => FrameName::Run(part_of.run),
        None => FrameName::Plain(node, frame),
    }
}

fn part_of(reading: &Reading, frame: FrameId) -> Option<&PartOf> {
    reading.members.get(&frame)?.part_of.as_ref()
}

/// Whether a frame claims to be under a run that, as the same node knows, belongs to another user.
fn is_of_another_user(reading: &Reading, table: &Table, frame: &FrameState, run: RunId) -> bool {
    let is_of_run = |id| part_of(reading, id).is_some_and(|part_of| part_of.run == run);
    table.frames().any(|other| is_of_run(other.id) && other.uid != frame.uid)
}

/// The table of a node without the holds that it takes back for any other request.
fn without_loose_parts(reading: &Reading) -> Snapshot {
    let mut table = reading.table.clone();
    let is_loose = |frame| part_of(reading, frame).is_some_and(|part_of| part_of.is_loose);
    table.holds.retain(|hold| !is_loose(hold.frame));
    table
}
