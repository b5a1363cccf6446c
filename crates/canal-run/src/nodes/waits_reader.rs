//! Reads the waits of the nodes for a waiting request that may be part of a deadlock.
//!
//! It has its own connections, and only while the request waits: on those of the request, a node
//! answers no call during the wait.
//!
//! Invariant: a reading counts only for the node to which its connection was pinned.

use std::borrow::Cow;
use std::collections::BTreeSet;

use canal_core::{By, FrameId, Key, Mode, RequestId, WaiterState};
use canal_lock::client::Start;
use canal_lock::client::nodes::link::parameters;
use canal_nodes::deadlock::{Deadlock, Detector, Named, Next, RequestName, Step, Way};
use canal_nodes::{Input, Millis};
use canal_protocol::node_address::NodeAddress;
use canal_protocol::{
    BlockerInfo, CycleStepInfo, Node, NodeAt, NodeFailure, NodeId, PartyInfo, READ_NODES_MAX,
    RunId, Tag, WaitsFound, WaitsNear,
};
use canal_text::time::utc;

use super::node_connection::{Answer, Heard, Kind, Member};
use super::nodes_request::{Around, NodesRequest};

/// Reads the waits of the nodes for one request.
pub(super) struct WaitsReader<'a> {
    own: Own<'a>,
    around: &'a Around,
    detector: Detector,
    /// The last question to the nodes, with its number.
    question: (u64, Named),
    sources: Vec<Source>,
    /// The latest time for the next call of [`Self::turn`].
    pub(super) wake_at: Option<Millis>,
    /// How many looks were over at the last check for nodes that could not be read.
    looks: u64,
    /// The nodes already reported as unreadable.
    unread: Vec<String>,
    /// These nodes, until the user has been notified of them.
    pub(super) news: Option<Vec<String>>,
    /// The ring for which the request must be refused, the request first.
    pub(super) cycle: Vec<CycleStepInfo>,
}

/// The waiting request.
#[derive(Clone, Copy, Debug)]
enum Own<'a> {
    /// A request over nodes, and its command.
    Run(RunId, &'a str),
    /// A request at the daemon of this machine.
    Plain(Tag),
}

/// A node to read.
struct Source {
    member: Member,
    /// The node that it must be, if that is known.
    expected: Option<NodeId>,
    /// Whether others named it; if so, no daemon is started there.
    is_told: bool,
    /// The node that it is, once it has sent its identity.
    id: Option<NodeId>,
    /// Whether it has answered the last question.
    is_read: bool,
    /// Whether no further attempt can help.
    is_useless: bool,
    /// Whether it gets the last question once it is reached.
    is_wanted: bool,
    /// The number of unanswered calls.
    unanswered: usize,
    last: Option<WaitsFound>,
}

impl<'a> WaitsReader<'a> {
    /// For a request over nodes.
    pub(super) fn new(request: &'a NodesRequest) -> Self {
        let (run, around) = (request.secret.run(), &request.around);
        // Only this machine's daemon knows what encloses the request here.
        let here = request.under_frame.is_some().then_some(NodeAddress::Local).map(Node::at);
        let nodes = request.nodes.iter().chain(&around.near).cloned().chain(here);
        let runs = [run].into_iter().chain(request.asked.under_run);
        let mut this = Self::around(around, Own::Run(run, &request.asked.command), nodes, runs);
        this.detector.is(RequestName::Run(run));
        this
    }

    /// For a request at the daemon of this machine, within a run over nodes.
    pub(super) fn of_plain(around: &'a Around, run: RunId, tag: Tag) -> Self {
        let nodes = [Node::at(NodeAddress::Local)].into_iter().chain(around.near.iter().cloned());
        Self::around(around, Own::Plain(tag), nodes, [run])
    }

    /// Reads those of these nodes that were met before, and never meets new ones.
    fn around(
        around: &'a Around,
        own: Own<'a>,
        nodes: impl Iterator<Item = Node>,
        runs: impl IntoIterator<Item = RunId>,
    ) -> Self {
        let mut sources: Vec<Source> = Vec::new();
        for node in nodes {
            let is_local = node.address == NodeAddress::Local;
            let recorded = around.known_nodes.known(&node.address).ok().flatten();
            let expected = recorded.map(|recorded| recorded.node);
            let is_new = sources.iter().all(|other| other.member.node.address != node.address);
            if (is_local || expected.is_some()) && is_new && sources.len() < READ_NODES_MAX {
                sources.push(Source::new(node, expected));
            }
        }
        let named = Named { runs: runs.into_iter().collect(), ..Named::default() };
        let detector = Detector::new(named, sources.len());
        let (question, wake_at, looks, unread, news, cycle) = Default::default();
        Self { own, around, detector, question, sources, wake_at, looks, unread, news, cycle }
    }

    /// Adds the nodes that others read, if they can be found.
    fn add_told(&mut self, told: &[NodeAt]) {
        for at in told {
            let is_known = self.sources.iter().any(|source| source.is(at.node));
            if is_known || self.sources.len() >= READ_NODES_MAX {
                continue;
            }
            let met = self.around.known_nodes.address_of(at.node).ok().flatten();
            let address = met.or_else(|| at.address.as_ref()?.parse().ok());
            if let Some(address) = address.filter(|it| *it != NodeAddress::Local) {
                let source = Source::new(Node::at(address), Some(at.node));
                self.sources.push(Source { is_told: true, ..source });
                self.detector.add_node();
            }
        }
    }

    /// The nodes that an answer names: those of requests near this one, and those that others read.
    fn named_by(&self, at: usize) -> Vec<NodeAt> {
        let Some(found) = &self.sources[at].last else { return Vec::new() };
        let parts = found.frames.iter().filter_map(|frame| frame.part_of.as_ref());
        let of_requests = parts.flat_map(|part| &part.nodes);
        let of_requests = of_requests.map(|node| NodeAt { node: *node, address: None });
        found.nodes.iter().cloned().chain(of_requests).collect()
    }

    /// All nodes that this reads, for others who look.
    fn read(&self) -> Vec<NodeAt> {
        let at = |source: &Source| {
            let node = source.id.or(source.expected)?;
            let address = match &source.member.node.address {
                NodeAddress::Local => NodeAddress::Unix(self.around.here.socket.clone()),
                address => address.clone(),
            };
            Some(NodeAt { node, address: Some(address.to_string()) })
        };
        self.sources.iter().filter_map(at).collect()
    }

    /// Finds, after each look, the nodes of requests near this one that could not be read. A
    /// deadlock over them is not found.
    fn check_unread(&mut self) {
        if self.looks == self.detector.looks() {
            return;
        }
        self.looks = self.detector.looks();
        let named = (0..self.sources.len()).flat_map(|at| self.named_by(at));
        let near: BTreeSet<NodeId> = named.map(|at| at.node).collect();
        let name = |node: NodeId| match self.sources.iter().find(|source| source.is(node)) {
            Some(source) if source.is_read => None,
            Some(source) => Some(source.member.node.name.clone()),
            None => Some(format!("node {:.8}", node.to_string())),
        };
        let unread: Vec<String> = near.into_iter().filter_map(name).collect();
        if self.unread != unread {
            self.unread.clone_from(&unread);
            self.news = Some(unread).filter(|unread| !unread.is_empty());
        }
    }

    /// Continues to look while the request waits. Returns how it must give way, if it must.
    pub(super) fn turn(&mut self, waits: bool, now: Millis) -> Option<Input> {
        self.detector.waits(waits, now);
        if waits {
            (0..self.sources.len()).for_each(|at| self.hear(at));
        }
        loop {
            match self.detector.next(now) {
                Next::Ask(round, named) => {
                    self.question = (round, named);
                    (0..self.sources.len()).for_each(|at| self.ask(at));
                }
                Next::GiveWay { way: Way::Surrender, .. } => {
                    self.close_all();
                    return Some(Input::Surrender);
                }
                Next::GiveWay { deadlock: Deadlock { mut ring, .. }, way: Way::Refusal } => {
                    let is_own = |step: &Step| Some(step.request) == self.detector.own();
                    let first = ring.iter().position(is_own);
                    ring.rotate_left(first.unwrap_or_default());
                    // The ring is what the last answers of the nodes show.
                    self.cycle = ring.iter().filter_map(|step| self.step(step)).collect();
                    return Some(Input::Deadlock(told(&ring)));
                }
                Next::Rest(until) => {
                    self.wake_at = until;
                    self.check_unread();
                    if !waits {
                        self.close_all();
                    }
                    return None;
                }
            }
        }
    }

    /// The nodes to read, for the caller's sleep.
    pub(super) fn members(&self) -> impl Iterator<Item = &Member> + Clone {
        self.sources.iter().map(|source| &source.member)
    }

    fn ask(&mut self, at: usize) {
        let source = &mut self.sources[at];
        source.is_read = false;
        if source.is_useless {
            return self.detector.answer(self.question.0, at, None);
        }
        source.is_wanted = true;
        if !source.member.is_open() {
            let mut around = Cow::Borrowed(self.around);
            if source.is_told {
                around.to_mut().options.start = Start::Never;
            }
            if let Err(failure) = source.member.open(&around) {
                return self.lose(at, &failure);
            }
        }
        self.send(at);
    }

    fn send(&mut self, at: usize) {
        let (nodes, (_, named)) = (self.read(), &self.question);
        let source = &mut self.sources[at];
        let is_ready = source.is_wanted && source.member.reached;
        let Some(id) = source.id.filter(|_| is_ready) else { return };
        let of_node = named.frames.iter().filter(|(node, _)| *node == id);
        let frames = of_node.map(|(_, frame)| *frame).collect();
        let tag = match (self.own, &source.member.node.address) {
            (Own::Plain(tag), NodeAddress::Local) => Some(tag),
            _ => None,
        };
        let asked = WaitsNear { runs: named.runs.iter().copied().collect(), frames, tag, nodes };
        (source.is_wanted, source.unanswered) = (false, source.unanswered + 1);
        if let Err(failure) = source.member.call(Kind::WaitsNear, &asked) {
            self.lose(at, &failure);
        }
    }

    fn hear(&mut self, at: usize) {
        for heard in self.sources[at].member.turn() {
            match heard {
                Heard::Identity(identity) => {
                    if let Err(failure) = self.check(at, identity.known.node) {
                        return self.lose(at, &failure);
                    }
                    let source = &mut self.sources[at];
                    source.id = Some(identity.known.node);
                    source.member.reached = true;
                    self.send(at);
                }
                Heard::Answer(Answer { result, .. }) => {
                    let found = match result.as_ref().map(parameters::<WaitsFound>) {
                        Ok(Ok(found)) => Some(found),
                        Ok(Err(failure)) => return self.lose(at, &failure),
                        // It does not show the waits that it knows.
                        Err(_) => None,
                    };
                    self.take(at, found);
                }
                Heard::Away(failure) => return self.lose(at, &failure),
            }
        }
    }

    /// Takes the answer to the oldest question; `None` if the node does not answer it. Only the
    /// last question matters.
    fn take(&mut self, at: usize, found: Option<WaitsFound>) {
        let (round, source) = (self.question.0, &mut self.sources[at]);
        source.unanswered = source.unanswered.saturating_sub(1);
        if source.unanswered > 0 {
            return;
        }
        let Some(found) = found else { return self.detector.answer(round, at, None) };
        let found = Some(found).filter(|found| Some(found.node) == source.id);
        // Another machine's answer about this machine's request does not count.
        if let (Own::Plain(_), NodeAddress::Local, Some(found)) =
            (self.own, &source.member.node.address, &found)
            && let Some(own) = found.request
        {
            self.detector.is(RequestName::Plain(found.node, own));
        }
        source.is_read = found.is_some();
        source.last.clone_from(&found);
        self.add_told(&self.named_by(at));
        self.detector.answer(round, at, found);
    }

    /// Whether a daemon is the one to which its address was pinned, and is not already read by
    /// another name.
    fn check(&self, at: usize, node: NodeId) -> Result<(), NodeFailure> {
        if self.sources[at].expected.is_some_and(|expected| expected != node) {
            return Err(NodeFailure::permanent("it is now a different daemon"));
        }
        let mut others = self.sources.iter().enumerate().filter(|(other, _)| *other != at);
        if others.any(|(_, other)| other.id == Some(node) && !other.is_useless) {
            return Err(NodeFailure::permanent("canal already reads it under another name"));
        }
        Ok(())
    }

    /// Records that a node cannot be read now: an open question gets an empty answer.
    fn lose(&mut self, at: usize, failure: &NodeFailure) {
        let source = &mut self.sources[at];
        source.is_useless |= failure.permanent;
        if source.is_wanted || source.unanswered > 0 {
            self.detector.answer(self.question.0, at, None);
        }
        source.close();
    }

    fn close_all(&mut self) {
        self.sources.iter_mut().for_each(Source::close);
    }

    fn step(&self, step: &Step) -> Option<CycleStepInfo> {
        let source = self.sources.iter().find(|source| source.id == Some(step.node))?;
        let found = source.last.as_ref()?;
        let (frame, key, mode, since, holds) = match step.by {
            By::Hold(token, frame) => {
                let hold = found.table.holds.iter().find(|hold| hold.token == token)?;
                let item = hold.items.iter().find(|item| is_near(&item.key, &step.key))?;
                (frame, &item.key, item.mode, hold.since, true)
            }
            By::Waiter(id, frame) => {
                let other = waiter(found, id)?;
                // It may ask for the key itself, or for one above or below it.
                let items = &other.request.items;
                let same = items.iter().find(|item| item.key == step.key);
                let item = same.or_else(|| items.iter().find(|it| is_near(&it.key, &step.key)));
                let mode = item.map_or(Mode::Counted, |item| item.ask.mode());
                (frame, &step.key, mode, other.since, false)
            }
        };
        let (party, key) = (self.party_of(found, frame)?, key.to_string());
        Some(CycleStepInfo {
            waiter: self.party_of(found, waiter(found, step.id)?.frame)?,
            key: step.key.to_string(),
            mode: step.mode,
            blocker: BlockerInfo { party, key, mode, holds, since: utc(since.0) },
            node: Some(source.member.node.name.clone()),
        })
    }

    fn party_of(&self, found: &WaitsFound, frame: FrameId) -> Option<PartyInfo> {
        let frame = found.frames.iter().find(|it| it.frame == frame)?;
        let run = frame.part_of.as_ref().map(|part| part.run);
        // The user of another machine may not see this one's command.
        let command = match self.own {
            Own::Run(own, command) if run == Some(own) => Some(command.to_owned()),
            _ => frame.command.clone(),
        };
        Some(PartyInfo {
            pid: frame.pid,
            uid: frame.uid,
            command,
            session: frame.session.clone(),
            lease: frame.lease,
            run,
        })
    }
}

impl Source {
    fn new(node: Node, expected: Option<NodeId>) -> Self {
        Self {
            member: Member::new(node),
            expected,
            is_told: false,
            id: None,
            is_read: false,
            is_useless: false,
            is_wanted: false,
            unanswered: 0,
            last: None,
        }
    }

    fn close(&mut self) {
        (self.is_wanted, self.unanswered) = (false, 0);
        self.member.close();
    }

    fn is(&self, node: NodeId) -> bool {
        self.id.or(self.expected) == Some(node)
    }
}

fn waiter(found: &WaitsFound, id: RequestId) -> Option<&WaiterState> {
    found.table.waiters.iter().find(|waiter| waiter.id == id)
}

fn is_near(one: &Key, other: &Key) -> bool {
    one.covers(other) || other.covers(one)
}

/// A deadlock in one clause.
fn told(ring: &[Step]) -> String {
    let key = ring.first().map(|step| step.key.to_string()).unwrap_or_default();
    match ring.len() {
        1 => format!(
            "deadlock: the enclosing command holds `{key}`, so waiting for it would never end"
        ),
        requests => format!(
            "deadlock on `{key}`: {requests} requests on nodes would wait for each other forever"
        ),
    }
}
