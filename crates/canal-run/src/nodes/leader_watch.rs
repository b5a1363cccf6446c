//! Asks several nodes which request leads by holding a key, and reconnects to those that go away.
//!
//! The answer of a node counts while its connection lives, and for a moment after that: a daemon
//! that restarts, or an ssh that ended, is reached again by then.
//! [`canal_nodes::leader_by_majority`] draws the conclusion.
//!
//! Invariant: an answer counts only for the node to which its connection was pinned, and each
//! daemon counts once.

use canal_lock::client::nodes::link::parameters;
use canal_nodes::Millis;
use canal_nodes::leader_by_majority::{Claim, Verdict, judge};
use canal_protocol::{ErrorName, HolderInfo, Leader, LeaderQuery, Node, NodeFailure, NodeId};
use canal_sys::clock::boottime_ms;

use super::connect_and_identify::one_daemon;
use super::node_connection::{Answer, Heard, Kind, Member, sleep};
use super::nodes_request::Around;

/// How long the last answer of a node counts after its connection has ended.
const LAST_WORD_MS: Millis = 5_000;

/// The longest time that [`LeaderAtNodes::turn`] takes.
const TURN_MS: Millis = 1_000;

/// How long to wait before a node is asked again, at first and at most.
const PAUSE_MS: (Millis, Millis) = (500, 15_000);

/// Watches which request leads at several nodes. The process must have one thread.
#[derive(Debug)]
pub struct LeaderAtNodes<'a> {
    query: LeaderQuery,
    least: usize,
    around: &'a Around,
    sources: Vec<Source>,
}

/// The leader, and the answer of each node.
#[derive(Clone, Debug)]
pub struct LeaderView {
    /// The leader, as the nodes that hold its parts show it. It is stale while the silent nodes
    /// decide.
    pub said: Leader,
    /// The nodes, in the order of the list.
    pub nodes: Vec<NodeView>,
}

/// The state of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// The user's word for the node.
    pub name: String,
    /// Its state.
    pub state: NodeState,
}

/// The answer of one node about the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It has not answered yet, and was not seen away.
    Asked,
    /// It is out of reach, for this reason.
    Away(NodeFailure),
    /// It holds a confirmed part of a request.
    Holds(Claim, Box<HolderInfo>),
    /// It holds no part of any request.
    None,
    /// Several requests can hold the key there, for this reason.
    NotExclusive(String),
}

/// A node to ask.
#[derive(Debug)]
struct Source {
    member: Member,
    id: Option<NodeId>,
    /// The last answer of the node, while it counts.
    answer: Option<NodeState>,
    /// When the node last answered, if it is no longer connected.
    heard_at: Option<Millis>,
    failure: Option<NodeFailure>,
    ask_at: Option<Millis>,
    pause: Millis,
}

impl<'a> LeaderAtNodes<'a> {
    /// Asks the nodes of `around.near` for the leader of a key. At least `least` of them must name
    /// it.
    pub fn new(key: &str, least: usize, around: &'a Around) -> Self {
        let sources = around.near.iter().cloned().map(Source::new).collect();
        let query = LeaderQuery { key: key.to_owned() };
        Self { query, least, around, sources }
    }

    /// Waits until something may have changed, or for a second.
    ///
    /// # Errors
    /// Two names lead to one daemon, or a system call failed.
    pub fn turn(&mut self) -> Result<(), NodeFailure> {
        let now = boottime_ms();
        for source in &mut self.sources {
            source.expire(now);
            if source.ask_at.is_some_and(|at| at <= now) {
                source.ask_at = None;
                source.member.close();
                source.member.open(self.around).unwrap_or_else(|failure| source.lose(failure));
            }
        }
        let now = boottime_ms();
        let due_ms = self.sources.iter().map(|source| source.due_ms(now)).fold(TURN_MS, u64::min);
        sleep(self.sources.iter().map(|it| &it.member), [], due_ms)?;
        for at in 0..self.sources.len() {
            self.hear(at)?;
        }
        Ok(())
    }

    /// The present knowledge.
    pub fn view(&self) -> LeaderView {
        let answers = self.sources.iter().filter_map(|source| source.answer.as_ref());
        let silent = self.sources.len() - answers.clone().count();
        let held: Vec<(Claim, &HolderInfo)> = answers
            .filter_map(|answer| match answer {
                NodeState::Holds(claim, holder) => Some((*claim, &**holder)),
                _ => None,
            })
            .collect();
        let claims: Vec<Claim> = held.iter().map(|(claim, _)| *claim).collect();
        let (leader, stale) = match judge(&claims, silent, self.least) {
            Verdict::Led(claim) => (leader(claim, &held), false),
            Verdict::Vacant => (None, false),
            Verdict::Unknown => (None, true),
        };
        let nodes = self.sources.iter().map(Source::view).collect();
        LeaderView { said: Leader { leader, stale }, nodes }
    }

    fn hear(&mut self, at: usize) -> Result<(), NodeFailure> {
        for heard in self.sources[at].member.turn() {
            let heard = match heard {
                Heard::Identity(identity) => {
                    let (known, node) = (identity.known, &self.sources[at].member.node);
                    let met = self.around.known_nodes.meet(node, &known);
                    let is_other =
                        |(other, it): &(usize, &Source)| *other != at && it.id == Some(known.node);
                    let other = self.sources.iter().enumerate().find(is_other);
                    if let Some((_, other)) = other.filter(|_| met.is_ok()) {
                        return Err(one_daemon(&other.member.node, node, &known.shown()));
                    }
                    met.and_then(|()| {
                        let source = &mut self.sources[at];
                        source.id = Some(known.node);
                        source.member.call(Kind::Leader, &self.query)
                    })
                }
                Heard::Answer(answer) => self.sources[at].take(answer),
                Heard::Away(failure) => Err(failure),
            };
            if let Err(failure) = heard {
                self.sources[at].lose(failure);
                break;
            }
        }
        Ok(())
    }
}

impl Source {
    fn new(node: Node) -> Self {
        let (member, pause) = (Member::new(node), PAUSE_MS.0);
        let (id, answer, heard_at, failure) = Default::default();
        Self { member, id, answer, heard_at, failure, ask_at: Some(0), pause }
    }

    /// Takes an answer of the node. The error is the reason why it does not count.
    fn take(&mut self, answer: Answer) -> Result<(), NodeFailure> {
        let said = match answer.result {
            Ok(reply) => parameters::<Leader>(&reply)?,
            Err(failure) if failure.name == ErrorName::NotExclusive => {
                self.answered(NodeState::NotExclusive(failure.message));
                self.ask_at = Some(boottime_ms() + LAST_WORD_MS);
                return Ok(());
            }
            Err(failure) => return Err(NodeFailure::permanent(failure.message)),
        };
        if said.stale {
            return Err(NodeFailure::permanent("its daemon has an engine, so it is not a node"));
        }
        self.answered(said.leader.map_or(NodeState::None, held));
        Ok(())
    }

    fn answered(&mut self, answer: NodeState) {
        self.answer = Some(answer);
        (self.heard_at, self.failure, self.pause) = (None, None, PAUSE_MS.0);
    }

    /// Gives up the connection. The node is asked again after a pause.
    fn lose(&mut self, failure: NodeFailure) {
        let now = boottime_ms();
        let heard = self.member.heard_at().unwrap_or(now);
        if self.answer.is_some() {
            self.heard_at.get_or_insert(heard);
        }
        let pause = if failure.permanent { PAUSE_MS.1 } else { self.pause };
        self.failure = Some(failure);
        self.ask_at = Some(now + pause);
        self.pause = (self.pause * 2).min(PAUSE_MS.1);
        self.expire(now);
        self.member.close();
    }

    /// Forgets an old answer of the node.
    fn expire(&mut self, now: Millis) {
        if self.heard_at.is_some_and(|heard| now.saturating_sub(heard) >= LAST_WORD_MS) {
            (self.answer, self.heard_at) = (None, None);
        }
    }

    fn due_ms(&self, now: Millis) -> Millis {
        let forget = self.heard_at.map(|heard| heard + LAST_WORD_MS);
        let due = self.ask_at.into_iter().chain(forget).min();
        due.map_or(u64::MAX, |due| due.saturating_sub(now))
    }

    fn view(&self) -> NodeView {
        let away = || self.failure.clone().map_or(NodeState::Asked, NodeState::Away);
        let state = self.answer.clone().unwrap_or_else(away);
        NodeView { name: self.member.node.name.clone(), state }
    }
}

/// The leader, with the time since which it leads: when the last of the nodes that it needs granted
/// its part. Nodes that it does not need may have granted theirs later.
fn leader(claim: Claim, held: &[(Claim, &HolderInfo)]) -> Option<HolderInfo> {
    let mut holders: Vec<&HolderInfo> =
        held.iter().filter(|(of, _)| *of == claim).map(|(_, holder)| *holder).collect();
    holders.sort_by_key(|holder| holder.since.parse::<jiff::Timestamp>().ok());
    holders.get(claim.need.clamp(1, holders.len().max(1)) - 1).copied().cloned()
}

/// The confirmed part of a request over nodes that a holder represents, if any. An unconfirmed part
/// may still be released, and a lock of this node alone does not lead anywhere else.
fn held(holder: HolderInfo) -> NodeState {
    let Some(over) = holder.over_nodes.as_deref().filter(|over| !over.collecting) else {
        return NodeState::None;
    };
    let need = usize::try_from(over.need).unwrap_or(usize::MAX);
    NodeState::Holds(Claim { run: over.run, token: holder.token, need }, Box::new(holder))
}
