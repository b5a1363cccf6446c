//! Several tables, and clients that ask at one or more of them, as their coordinators do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::json;

use crate::deadlock::RequestName;
use canal_core::*;
use canal_protocol::{FrameFound, FrameOfNode, PartFound, WaitsFound};

/// The tables, and the requests of clients.
#[derive(Clone)]
pub(super) struct World {
    pub(super) tables: Vec<Table>,
    members: Vec<BTreeMap<FrameId, FrameFound>>,
    pub(super) asks: Vec<Client>,
    clock: u64,
    /// Whether a request over nodes is complete as soon as one node has granted its part.
    pub(super) is_optimistic: bool,
    /// How many requests a table refused to end a deadlock of its own.
    pub(super) refused: usize,
}

/// The request of a client: a process at one node, or a request over nodes.
#[derive(Clone, Debug)]
pub(super) struct Client {
    /// The nodes, in the order in which they are asked.
    nodes: Vec<usize>,
    /// Set for a request over nodes.
    run: Option<(RunId, Require)>,
    items: Vec<Item>,
    pub(super) under: Option<usize>,
    frames: BTreeMap<usize, FrameId>,
    waits: BTreeMap<usize, RequestId>,
    granted: BTreeSet<usize>,
    pub(super) state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Waits,
    /// Its command runs.
    Runs,
    /// It was refused, or its command has ended.
    Over,
}

/// Items: `w x` writes, `r x` reads, `c x` takes the only slot, `c3 x` one of three.
pub(super) fn items(text: &str) -> Vec<Item> {
    let words: Vec<&str> = text.split(' ').collect();
    let item = |pair: &[&str]| {
        let ask = match pair[0] {
            "w" => Ask::Write,
            "r" => Ask::Read,
            "c" => Ask::slots(1, Some(View::Slots { slots: 1 })),
            slots => {
                let slots = slots[1..].parse().unwrap();
                Ask::slots(1, Some(View::Slots { slots }))
            }
        };
        Item { key: Key::new(pair[1]).unwrap(), ask }
    };
    words.chunks(2).map(item).collect()
}

/// A request without owner and items.
fn blank() -> Request {
    let blank = json!({
        "tag": format!("{:032x}", 0), "owner": { "lease": format!("{:032x}", 0) }, "uid": 1000, "command": "",
        "items": [], "wait": { "yes": {} },
    });
    serde_json::from_value(blank).unwrap()
}

impl World {
    pub(super) fn of(nodes: usize) -> Self {
        let (refused, is_optimistic) = (0, false);
        let tables = vec![Table::default(); nodes];
        let members = vec![BTreeMap::new(); nodes];
        Self { tables, members, asks: Vec::new(), clock: 1_000, is_optimistic, refused }
    }

    pub(super) fn node(at: usize) -> NodeId {
        NodeId(at as u128 + 1)
    }

    /// A process of a node asks, and waits.
    pub(super) fn plain(&mut self, node: usize, wanted: &str, under: Option<usize>) -> usize {
        // A process within another one is on the same machine.
        let around = under.map(|under| &self.asks[under]).filter(|around| around.run.is_none());
        let node = around.map_or(node, |around| around.nodes[0]);
        self.begin(vec![node], None, wanted, under)
    }

    /// A request over nodes asks them in their order (`any`: all at once), and waits.
    pub(super) fn over(
        &mut self,
        nodes: &[usize],
        require: Require,
        wanted: &str,
        under: Option<usize>,
    ) -> usize {
        let run = RunId(1_000 + self.asks.len() as u128);
        self.begin(nodes.to_vec(), Some((run, require)), wanted, under)
    }

    fn begin(
        &mut self,
        nodes: Vec<usize>,
        run: Option<(RunId, Require)>,
        wanted: &str,
        under: Option<usize>,
    ) -> usize {
        let id = self.asks.len();
        let (frames, waits, granted) = Default::default();
        let items = items(wanted);
        let state = State::Waits;
        self.asks.push(Client { nodes, run, items, under, frames, waits, granted, state });
        match run {
            Some((_, Require::Any)) => {
                for node in self.asks[id].nodes.clone() {
                    if self.asks[id].state == State::Waits {
                        self.ask_at(id, node);
                    }
                }
            }
            _ => self.ask_at(id, self.asks[id].nodes[0]),
        }
        id
    }

    fn ask_at(&mut self, id: usize, node: usize) {
        let ask = &self.asks[id];
        let above = ask.under.map(|under| &self.asks[under]);
        // A lease can prove that it is asked under another lease of the node, and a process that it
        // is asked under another process of the machine. A process under a lease proves nothing.
        let parent = above.filter(|above| ask.run.is_some() || above.run.is_none());
        let parent = parent.and_then(|above| above.frames.get(&node)).copied();
        let number = (id * 100 + node + 1) as u32;
        // Asks as a process: a table puts a lease without its handle under no other lease.
        let owner = Owner::Process(ProcessId { pid: number, started: 1, inode: 0 });
        let request =
            Request { tag: Tag(number.into()), owner, parent, items: ask.items.clone(), ..blank() };
        let request = Change::Request(Arc::new(request));
        let revision = self.tables[node].revision().0 + 1;
        let outcomes = self.change(node, request);
        let asked = RequestId(revision);
        let frame = outcomes.iter().find_map(|outcome| match outcome {
            Outcome::Queued { request, frame } if *request == asked => Some(*frame),
            Outcome::Granted(granted) if granted.request == asked => Some(granted.frame),
            _ => None,
        });
        if let Some(frame) = frame {
            let found = self.found(id, frame);
            self.members[node].insert(frame, found);
            self.asks[id].frames.insert(node, frame);
        }
        self.asks[id].waits.insert(node, asked);
        self.follow(node, &outcomes);
    }

    /// A frame of a request, as its node reports it.
    fn found(&self, id: usize, frame: FrameId) -> FrameFound {
        let ask = &self.asks[id];
        let part_of = ask.run.map(|(run, require)| PartFound {
            run,
            nodes: ask.nodes.iter().map(|node| Self::node(*node)).collect(),
            require,
            loose: false,
        });
        let above = ask.under.map(|under| &self.asks[under]);
        let under_run = above.and_then(|above| above.run).map(|(run, _)| run);
        let under_frame = above.filter(|above| above.run.is_none()).map(|above| {
            let (node, frame) = above.frames.first_key_value().unwrap();
            FrameOfNode { node: Self::node(*node), frame: *frame }
        });
        let session = String::new();
        FrameFound {
            frame,
            session,
            pid: 0,
            uid: 0,
            command: None,
            lease: false,
            part_of,
            under_run,
            under_frame,
        }
    }

    fn change(&mut self, node: usize, change: Change) -> Vec<Outcome> {
        self.clock += 1;
        let entry = Entry { version: ENTRY_VERSION, at: UnixMillis(self.clock), change };
        let mut outcomes = Vec::new();
        let table = &mut self.tables[node];
        table.apply(Revision(table.revision().0 + 1), &entry, &mut outcomes);
        outcomes
    }

    /// Applies a change at one node that no client requested at several.
    pub(super) fn apply(&mut self, node: usize, change: Change) {
        let outcomes = self.change(node, change);
        self.follow(node, &outcomes);
    }

    /// Acts on the decisions of a node as coordinators and clients do.
    fn follow(&mut self, node: usize, outcomes: &[Outcome]) {
        for outcome in outcomes {
            match outcome {
                Outcome::Granted(granted) => self.granted(node, granted.request),
                Outcome::Refused { request, .. } => {
                    self.refused += 1;
                    if let Some(id) = self.waiting(node, *request) {
                        self.asks[id].waits.remove(&node);
                        self.finish(id);
                    }
                }
                _ => {}
            }
        }
    }

    fn waiting(&self, node: usize, request: RequestId) -> Option<usize> {
        self.asks.iter().position(|ask| ask.waits.get(&node) == Some(&request))
    }

    fn granted(&mut self, node: usize, request: RequestId) {
        let Some(id) = self.waiting(node, request) else { return };
        let ask = &mut self.asks[id];
        ask.waits.remove(&node);
        ask.granted.insert(node);
        let least = ask.run.map_or(1, |(_, require)| require.least(ask.nodes.len()));
        if ask.granted.len() >= least || self.is_optimistic {
            ask.state = State::Runs;
            self.withdraw(id);
        } else if let Some(next) = ask.nodes.iter().copied().find(|it| !ask.granted.contains(it)) {
            self.ask_at(id, next);
        }
    }

    fn withdraw(&mut self, id: usize) {
        while let Some((node, request)) = self.asks[id].waits.pop_first() {
            let change = Change::Withdraw { request };
            let outcomes = self.change(node, change);
            self.follow(node, &outcomes);
        }
    }

    /// Refuses a request, or ends its command.
    pub(super) fn finish(&mut self, id: usize) {
        self.asks[id].state = State::Over;
        self.withdraw(id);
        for (node, frame) in self.asks[id].frames.clone() {
            if self.tables[node].frame(frame).is_some() {
                let outcomes = self.change(node, Change::Release(Release::All { frame }));
                self.follow(node, &outcomes);
            }
        }
    }

    /// A request over nodes releases everything that it has collected, and asks again.
    pub(super) fn surrender(&mut self, id: usize) {
        let Client { nodes, run, under, items, .. } = self.asks[id].clone();
        self.finish(id);
        let again = self.asks.len();
        let (frames, waits, granted) = Default::default();
        let run = run.map(|(_, require)| (RunId(1_000 + again as u128), require));
        let state = State::Waits;
        self.asks.push(Client { nodes, run, items, under, frames, waits, granted, state });
        self.ask_at(again, self.asks[again].nodes[0]);
    }

    /// A client and its enclosing requests, the innermost first.
    pub(super) fn lineage(&self, id: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(id), |at| self.asks[*at].under)
    }

    /// The nodes that a client and its enclosing requests asked.
    pub(super) fn nodes_around(&self, id: usize) -> BTreeSet<usize> {
        self.lineage(id).flat_map(|at| self.asks[at].nodes.clone()).collect()
    }

    /// The running commands in which no request runs or waits.
    pub(super) fn able_to_end(&self) -> Vec<usize> {
        let lives = |id: &usize| self.asks[*id].state != State::Over;
        let mut ends: BTreeSet<usize> = (0..self.asks.len()).filter(lives).collect();
        for id in ends.clone() {
            for around in self.lineage(id).skip(1) {
                ends.remove(&around);
            }
        }
        ends.into_iter().filter(|id| self.asks[*id].state == State::Runs).collect()
    }

    /// Whether a request is over nodes, or under one that is.
    pub(super) fn is_over_nodes(&self, id: usize) -> bool {
        self.lineage(id).any(|at| self.asks[at].run.is_some())
    }

    /// The requests that wait.
    pub(super) fn waiters(&self) -> BTreeSet<usize> {
        let ids = 0..self.asks.len();
        ids.filter(|id| self.asks[*id].state == State::Waits).collect()
    }

    /// The client whose request has this name.
    pub(super) fn ask_of(&self, name: RequestName) -> usize {
        let found = self.asks.iter().position(|ask| match (name, ask.run) {
            (RequestName::Run(run), Some((own, _))) => run == own,
            (RequestName::Plain(node, request), None) => {
                let at = (node.0 - 1) as usize;
                ask.waits.get(&at) == Some(&request)
            }
            _ => false,
        });
        found.unwrap_or_else(|| panic!("{name:?} waits nowhere"))
    }

    /// The name of a request that waits.
    pub(super) fn name_of(&self, id: usize) -> RequestName {
        let ask = &self.asks[id];
        match ask.run {
            Some((run, _)) => RequestName::Run(run),
            None => {
                let (node, request) = ask.waits.first_key_value().unwrap();
                RequestName::Plain(Self::node(*node), *request)
            }
        }
    }

    /// A node's reading of the frames that runs over nodes are part of or enclose, and of those
    /// near them.
    pub(super) fn reading(&self, at: usize) -> WaitsFound {
        let runs = |it: &FrameFound| it.part_of.is_some() || it.above().is_some();
        let asked = self.members[at].iter().filter(|(_, it)| runs(it)).map(|(frame, _)| *frame);
        let named = self.members.iter().flat_map(|members| members.values());
        let named = named.filter_map(|member| match member.above()? {
            Above::Frame(node, frame) if node == Self::node(at) => Some(frame),
            _ => None,
        });
        let table = self.tables[at].partial_table(asked.chain(named));
        let known = |frame: &FrameState| self.members[at].get(&frame.id).cloned();
        let frames = table.frames.iter().filter_map(known).collect();
        WaitsFound { node: Self::node(at), table, frames, request: None, nodes: Vec::new() }
    }

    /// The readings of all nodes at this moment.
    pub(super) fn readings(&self) -> Vec<WaitsFound> {
        (0..self.tables.len()).map(|at| self.reading(at)).collect()
    }

    /// The request of every client and its state, one line each.
    pub(super) fn told(&self) -> String {
        let line = |(id, ask): (usize, &Client)| {
            let Client { nodes, run, items, under, waits, granted, state, .. } = ask;
            let require = run.map(|(_, require)| require);
            let items: Vec<String> =
                items.iter().map(|item| format!("{:?} {}", item.ask.mode(), item.key)).collect();
            format!(
                "\n{id}: {require:?} of {nodes:?}, {items:?} under {under:?}: {state:?}, waits {waits:?}, \
                 granted {granted:?}"
            )
        };
        self.asks.iter().enumerate().map(line).collect()
    }
}
