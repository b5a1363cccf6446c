//! Finds out which daemons a list of nodes names, before anything else is asked of them: a request
//! carries the ids of all its nodes.

use std::time::Duration;

use nix::poll::PollFd;

use canal_lock::client::nodes::Node;
use canal_lock::client::nodes::known_nodes::{KnownNode, KnownNodesError};
use canal_lock::client::nodes::ssh::NodeFailure;
use canal_nodes::{Millis, Require};
use canal_protocol::node_address::NodeAddress;
use canal_protocol::{NodeId, NodeIdentity};
use canal_sys::clock::boottime_ms;
use canal_sys::fds;

use super::host::{Host, Wish, Word};
use super::member::{Heard, Member};
use super::request::NodesRequest;

/// The longest sleep.
const SLEEP_MS_MAX: u64 = 1000;

/// How long nodes may take to send their identity, if the request does not wait for longer.
const MEET_MS: u64 = 5_000;

/// A node whose id is known.
#[derive(Debug)]
pub(super) struct Known {
    /// Its place in the list of the user.
    pub(super) at: usize,
    pub(super) id: NodeId,
    /// When it grants, if it was just asked and does not grant yet.
    pub(super) grants_from: Option<Millis>,
    /// Its connection, open if it was just asked.
    pub(super) member: Member,
}

impl Known {
    /// A node that is not connected.
    pub(super) fn unasked(at: usize, id: NodeId, node: &Node, ttl_ms: u64) -> Self {
        Self { at, id, grants_from: None, member: Member::new(node.clone()).with_ttl(ttl_ms) }
    }
}

/// The findings about the nodes of a request.
#[derive(Debug)]
pub(super) struct Met {
    /// The nodes that count, ascending by id.
    pub(super) nodes: Vec<Known>,
    /// The daemon of this machine, if it encloses the request and answers.
    pub(super) here: Option<NodeId>,
}

/// Why a request cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum IdentifyError {
    /// A node that was never met is out of reach.
    #[error("cannot reach {name}, which canal has never reached: {}", failure.what)]
    NeverMet {
        /// Its name.
        name: String,
        /// The reason.
        failure: NodeFailure,
    },
    /// All nodes are out of reach.
    #[error("cannot reach any of the nodes; {name}: {}", failure.what)]
    None {
        /// The last of them.
        name: String,
        /// The reason.
        failure: NodeFailure,
    },
    /// Two names lead to one daemon.
    #[error("{one} and {other} are the same daemon: {what}")]
    OneDaemon {
        /// One name.
        one: String,
        /// The other name.
        other: String,
        /// The daemon.
        what: String,
    },
    /// The file of nodes already met is unreadable, or names another daemon.
    #[error(transparent)]
    KnownNodes(#[from] KnownNodesError),
    /// A system call failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The caller gave up.
    #[error("gave up")]
    GivenUp,
}

impl IdentifyError {
    /// Advice for the user.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NeverMet { failure, .. } | Self::None { failure, .. } => {
                failure.hint.clone().or_else(|| {
                    Some(
                        "make sure that it answers once; after that, other nodes can stand in for \
                         it"
                        .to_owned(),
                    )
                })
            }
            Self::OneDaemon { .. } => Some("name each daemon once".to_owned()),
            Self::KnownNodes(error) => error.hint(),
            Self::Io(_) | Self::GivenUp => None,
        }
    }
}

/// A node that is being asked for its identity.
struct Asked {
    at: usize,
    member: Member,
    result: Option<Result<Box<NodeIdentity>, NodeFailure>>,
}

impl Asked {
    fn new(at: usize, node: Node, request: &NodesRequest) -> Self {
        Self { at, member: Member::new(node).with_ttl(request.ttl_ms), result: None }
    }
}

/// Finds out about the nodes of a request. Asks those that were not met before, and the daemon of
/// this machine if it encloses the request.
pub(super) fn meet(request: &NodesRequest, host: &mut dyn Host) -> Result<Met, IdentifyError> {
    let mut met = meet_nodes(request, host)?;
    if request.under_frame.is_none() {
        return Ok(met);
    }
    let is_local = |known: &&Known| request.nodes[known.at].address == NodeAddress::Local;
    met.here = met.nodes.iter().find(is_local).map(|known| known.id);
    if met.here.is_none() {
        let (name, canal) = ("local".to_owned(), None);
        let node = Node { name, address: NodeAddress::Local, canal };
        let mut asked = [Asked::new(0, node, request)];
        ask_all(&mut asked, request, host)?;
        let [Asked { result, .. }] = asked;
        met.here = result.and_then(Result::ok).map(|identity| identity.node);
    }
    Ok(met)
}

fn meet_nodes(request: &NodesRequest, host: &mut dyn Host) -> Result<Met, IdentifyError> {
    let mut known = Vec::new();
    let mut asked = Vec::new();
    for (at, node) in request.nodes.iter().enumerate() {
        match request.around.known_nodes.known(&node.address)? {
            Some(recorded) => known.push(Known::unasked(at, recorded.node, node, request.ttl_ms)),
            None => asked.push(Asked::new(at, node.clone(), request)),
        }
    }
    ask_all(&mut asked, request, host)?;
    let mut met = Vec::new();
    for Asked { at, member, result } in asked {
        let node = &request.nodes[at];
        match result {
            Some(Ok(identity)) => {
                let recorded = KnownNode::of(&identity);
                request.around.known_nodes.meet(node, &recorded)?;
                if node.address != NodeAddress::Local {
                    met.push((node, recorded.clone()));
                }
                let left_ms = identity.grants_from_ms;
                let grants_from = left_ms.map(|left_ms| boottime_ms().saturating_add(left_ms));
                known.push(Known { at, id: recorded.node, grants_from, member });
            }
            Some(Err(failure)) if may_be_left_out(request.require) => {
                host.say(&Word::LeftOut { name: &node.name, failure: &failure });
                if known.is_empty() && at + 1 == request.nodes.len() {
                    return Err(IdentifyError::None { name: node.name.clone(), failure });
                }
            }
            Some(Err(failure)) => {
                return Err(IdentifyError::NeverMet { name: node.name.clone(), failure });
            }
            None => return Err(IdentifyError::GivenUp),
        }
    }
    if !met.is_empty() {
        host.say(&Word::Met { nodes: &met });
    }
    known.sort_by_key(|known| known.id);
    if let Some(pair) = known.windows(2).find(|pair| pair[0].id == pair[1].id) {
        let [one, other] = [&pair[0], &pair[1]].map(|known| &request.nodes[known.at]);
        return Err(IdentifyError::OneDaemon {
            one: one.name.clone(),
            other: other.name.clone(),
            what: shown(request, one, other, pair[0].id),
        });
    }
    Ok(Met { nodes: known, here: None })
}

/// Whether a request counts only the nodes that answer.
fn may_be_left_out(require: Require) -> bool {
    require == Require::Any || require.counts_the_alive()
}

/// The daemon to which two names lead.
fn shown(request: &NodesRequest, one: &Node, other: &Node, id: NodeId) -> String {
    let recorded = |node: &Node| request.around.known_nodes.known(&node.address).ok().flatten();
    match recorded(one).or_else(|| recorded(other)) {
        Some(recorded) => recorded.shown(),
        None => format!("node {id}"),
    }
}

/// Asks all of them at once, each until it has answered or is out of reach.
fn ask_all(
    asked: &mut [Asked],
    request: &NodesRequest,
    host: &mut dyn Host,
) -> Result<(), IdentifyError> {
    let meet_ms = request.asked.wait_ms.map_or(u64::MAX, |wait_ms| wait_ms.max(MEET_MS));
    let until = request.asked_at.saturating_add(meet_ms);
    for one in asked.iter_mut() {
        if let Err(failure) = one.member.open(&request.around) {
            one.member.close();
            one.result = Some(Err(failure));
        }
    }
    while asked.iter().any(|one| one.result.is_none()) {
        let waits = asked.iter().filter(|one| one.result.is_none());
        let patience = waits.map(|one| one.member.patience_ms()).min().unwrap_or(0);
        let patience = patience.min(until.saturating_sub(boottime_ms()));
        let mut polled: Vec<PollFd<'_>> =
            asked.iter().flat_map(|one| one.member.polled()).chain(host.polled()).collect();
        fds::poll_within(&mut polled, Some(Duration::from_millis(patience.min(SLEEP_MS_MAX))))?;
        drop(polled);
        if host.turn(boottime_ms()) != Wish::GoOn {
            return Err(IdentifyError::GivenUp);
        }
        for one in asked.iter_mut() {
            for heard in one.member.turn() {
                match heard {
                    Heard::Identity(identity) => one.result = Some(Ok(identity)),
                    Heard::Away(failure) => {
                        one.member.close();
                        one.result.get_or_insert(Err(failure));
                    }
                    _ => {}
                }
            }
            if one.result.is_none() && boottime_ms() >= until {
                one.member.close();
                one.result = Some(Err(NodeFailure::passing("it does not answer")));
            }
        }
    }
    Ok(())
}
