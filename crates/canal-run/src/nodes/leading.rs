//! Asks several nodes which request leads by holding a key, and reconnects to those that go away.
//!
//! The answer of a node counts while its connection lives, and for a moment after that: a daemon
//! that restarts, or an ssh that ended, is reached again by then. [`canal_nodes::leadership`]
//! draws the conclusion.
//!
//! Invariant: an answer counts only for the node to which its connection was pinned, and each
//! daemon counts once.

use canal_lock::client::nodes::known_nodes::KnownNode;
use canal_lock::client::nodes::link::parameters;
use canal_lock::client::nodes::ssh::NodeFailure;
use canal_lock::client::nodes::{Node, link};
use canal_nodes::Millis;
use canal_nodes::leadership::{Claim, Said, Verdict, judge};
use canal_protocol::{ErrorName, HolderInfo, Leader, LeaderQuery, NodeId, NodeIdentity};
use canal_sys::clock::boottime_ms;

use super::identify::IdentifyError;
use super::member::{Answer, Heard, Member, sleep};
use super::request::Around;

/// How long the last answer of a node counts after its connection has ended.
const LAST_WORD_MS: Millis = 5_000;

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
    /// The conclusion from the answers of the nodes.
    pub verdict: Verdict,
    /// The leader, as the nodes that hold its parts show it.
    pub leader: Option<HolderInfo>,
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
    /// It holds a part of the request that leads.
    Leader,
    /// It holds a part of another request.
    Other,
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
    word: Option<Word>,
    /// When the node last answered, if it is no longer connected.
    heard_at: Option<Millis>,
    failure: Option<NodeFailure>,
    ask_at: Option<Millis>,
    pause: Millis,
}

/// The last answer of a node.
#[derive(Clone, Debug)]
enum Word {
    Leader(Option<(Claim, Box<HolderInfo>)>),
    NotExclusive(String),
}

impl<'a> LeaderAtNodes<'a> {
    /// Asks the nodes of `around.near` for the leader of a key. At least `least` of them must name
    /// it.
    #[must_use]
    pub fn new(key: &str, least: usize, around: &'a Around) -> Self {
        let sources = around.near.iter().cloned().map(Source::new).collect();
        let query = LeaderQuery { key: key.to_owned() };
        Self { query, least, around, sources }
    }

    /// Waits until something may have changed, or for a second.
    ///
    /// # Errors
    /// Two names lead to one daemon, or a system call failed.
    pub fn turn(&mut self) -> Result<(), IdentifyError> {
        let now = boottime_ms();
        for source in &mut self.sources {
            source.expire(now);
            if source.ask_at.is_some_and(|at| at <= now) {
                source.member.close();
                source.open(self.around);
            }
        }
        let now = boottime_ms();
        let due_ms = self.sources.iter().map(|source| source.due_ms(now)).min();
        sleep(self.sources.iter().map(|it| &it.member), [], due_ms.unwrap_or(u64::MAX))?;
        for at in 0..self.sources.len() {
            self.hear(at)?;
        }
        link::reap();
        Ok(())
    }

    /// The present knowledge.
    #[must_use]
    pub fn view(&self) -> LeaderView {
        let said: Vec<Said> = self.sources.iter().map(Source::said).collect();
        let verdict = judge(&said, self.least);
        let led_by = match verdict {
            Verdict::Led(claim) => Some(claim),
            Verdict::Vacant | Verdict::Unknown => None,
        };
        let nodes = self.sources.iter().map(|source| source.view(led_by)).collect();
        LeaderView { verdict, leader: led_by.and_then(|claim| self.leader(claim)), nodes }
    }

    /// The leader, with the time since which it leads: when the last of the nodes that it needs
    /// granted its part. Nodes that it does not need may have granted theirs later.
    fn leader(&self, claim: Claim) -> Option<HolderInfo> {
        let holders = self.sources.iter().filter_map(|source| match &source.word {
            Some(Word::Leader(Some((of, holder)))) if *of == claim => Some(&**holder),
            _ => None,
        });
        let mut holders: Vec<&HolderInfo> = holders.collect();
        holders.sort_by_key(|holder| holder.since.parse::<jiff::Timestamp>().ok());
        holders.get(claim.need.clamp(1, holders.len().max(1)) - 1).copied().cloned()
    }

    fn hear(&mut self, at: usize) -> Result<(), IdentifyError> {
        for heard in self.sources[at].member.turn() {
            let failure = match heard {
                Heard::Identity(identity) => self.identified(at, &identity)?,
                Heard::Answer(Answer { result: Ok(reply), .. }) => match parameters(&reply) {
                    Ok(leader) => self.sources[at].told(leader),
                    Err(failure) => Some(failure),
                },
                Heard::Answer(Answer { result: Err(failure), .. }) => match failure.name {
                    ErrorName::NotExclusive => {
                        let source = &mut self.sources[at];
                        source.take(Word::NotExclusive(failure.message));
                        source.ask_at = Some(boottime_ms() + LAST_WORD_MS);
                        None
                    }
                    _ => Some(NodeFailure::permanent(failure.message)),
                },
                Heard::Away(failure) => Some(failure),
            };
            if let Some(failure) = failure {
                self.sources[at].lose(failure);
                break;
            }
        }
        Ok(())
    }

    /// Asks a node for its leader, once its daemon is known. Returns why it cannot be asked.
    fn identified(
        &mut self,
        at: usize,
        identity: &NodeIdentity,
    ) -> Result<Option<NodeFailure>, IdentifyError> {
        let source = &self.sources[at];
        let (node, recorded) = (&source.member.node, KnownNode::of(identity));
        if let Err(error) = self.around.known_nodes.meet(node, &recorded) {
            return Ok(Some(error.into()));
        }
        let mut others = self.sources.iter().enumerate().filter(|(other, _)| *other != at);
        if let Some((_, other)) = others.find(|(_, other)| other.id == Some(recorded.node)) {
            let shown = recorded.shown();
            return Err(IdentifyError::one_daemon(&other.member.node, node, &shown));
        }
        let source = &mut self.sources[at];
        source.id = Some(recorded.node);
        Ok(source.member.leader(&self.query).err())
    }
}

impl LeaderView {
    /// Whether each node has answered, or was seen away.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.nodes.iter().all(|node| node.state != NodeState::Asked)
    }
}

impl Source {
    fn new(node: Node) -> Self {
        Self {
            member: Member::new(node),
            id: None,
            word: None,
            heard_at: None,
            failure: None,
            ask_at: Some(0),
            pause: PAUSE_MS.0,
        }
    }

    fn open(&mut self, around: &Around) {
        self.ask_at = None;
        if let Err(failure) = self.member.open(around) {
            self.lose(failure);
        }
    }

    /// Takes the answer of the node. Returns why it does not count.
    fn told(&mut self, told: Leader) -> Option<NodeFailure> {
        if told.stale {
            return Some(NodeFailure::permanent("its daemon has an engine, so it is not a node"));
        }
        self.take(Word::Leader(told.leader.and_then(claimed)));
        None
    }

    fn take(&mut self, word: Word) {
        self.word = Some(word);
        (self.heard_at, self.failure, self.pause) = (None, None, PAUSE_MS.0);
    }

    /// Gives up the connection. The node is asked again after a pause.
    fn lose(&mut self, failure: NodeFailure) {
        let now = boottime_ms();
        let heard = self.member.heard_at().unwrap_or(now);
        if self.word.is_some() {
            self.heard_at.get_or_insert(heard);
        }
        let pause = match failure.permanent {
            true => PAUSE_MS.1,
            false => self.pause,
        };
        self.failure = Some(failure);
        self.ask_at = Some(now + pause);
        self.pause = (self.pause * 2).min(PAUSE_MS.1);
        self.expire(now);
        self.member.close();
    }

    /// Forgets an old answer of the node.
    fn expire(&mut self, now: Millis) {
        if self.heard_at.is_some_and(|heard| now.saturating_sub(heard) >= LAST_WORD_MS) {
            (self.word, self.heard_at) = (None, None);
        }
    }

    fn due_ms(&self, now: Millis) -> Millis {
        let forget = self.heard_at.map(|heard| heard + LAST_WORD_MS);
        let due = self.ask_at.into_iter().chain(forget).min();
        due.map_or(u64::MAX, |due| due.saturating_sub(now))
    }

    fn said(&self) -> Said {
        match &self.word {
            None => Said::Nothing,
            Some(Word::Leader(Some((claim, _)))) => Said::Holds(*claim),
            Some(Word::Leader(None) | Word::NotExclusive(_)) => Said::NoClaim,
        }
    }

    fn view(&self, led_by: Option<Claim>) -> NodeView {
        let state = match (&self.word, &self.failure) {
            (None, None) => NodeState::Asked,
            (None, Some(failure)) => NodeState::Away(failure.clone()),
            (Some(Word::NotExclusive(why)), _) => NodeState::NotExclusive(why.clone()),
            (Some(Word::Leader(None)), _) => NodeState::None,
            (Some(Word::Leader(Some((claim, _)))), _) if Some(*claim) == led_by => {
                NodeState::Leader
            }
            (Some(Word::Leader(Some(_))), _) => NodeState::Other,
        };
        NodeView { name: self.member.node.name.clone(), state }
    }
}

/// The confirmed part of a request over nodes that a holder represents, if any. An unconfirmed part
/// may still be released, and a lock of this node alone does not lead anywhere else.
fn claimed(holder: HolderInfo) -> Option<(Claim, Box<HolderInfo>)> {
    let over = holder.over_nodes.as_deref().filter(|over| !over.collecting)?;
    let need = usize::try_from(over.need).unwrap_or(usize::MAX);
    Some((Claim { run: over.run, token: holder.token, need }, Box::new(holder)))
}
