//! Finds out which daemons a list of nodes names, before anything else is asked of them: a request
//! carries the ids of all its nodes.

use canal_nodes::{Millis, Require};
use canal_protocol::node_address::NodeAddress;
use canal_protocol::{Grant, Node, NodeFailure, NodeId, NodeIdentity};
use canal_sys::clock::boottime_ms;

use super::member::{Heard, Member, sleep};
use super::request::{Host, News, NodesRequest, PartSaid, PartTrouble, Wish};
use super::wording;

/// How long nodes may take to send their identity, if the request does not wait for longer.
const MEET_MS: u64 = 5_000;

/// A node whose id is known, and its last answers.
#[derive(Debug)]
pub(super) struct NodeState {
    /// Its place in the list of the user.
    pub(super) at: usize,
    pub(super) id: NodeId,
    /// When it grants, if it reported on its first connection that it does not yet.
    pub(super) grants_from: Option<Millis>,
    /// Its connection, open if it was just asked.
    pub(super) member: Member,
    /// The number of the lease in the last request.
    pub(super) lease: u32,
    pub(super) grant: Option<Grant>,
    /// How many times it was asked to release its part.
    pub(super) releases: u32,
    /// Its last answer about its part.
    pub(super) said: Option<PartSaid>,
    /// Why it gave no answer about its part.
    pub(super) trouble: Option<PartTrouble>,
}

impl NodeState {
    /// A node that is not connected.
    pub(super) fn unasked(at: usize, id: NodeId, node: &Node, ttl_ms: u64) -> Self {
        Self {
            at,
            id,
            grants_from: None,
            member: Member::with_ttl(node.clone(), ttl_ms),
            lease: 0,
            grant: None,
            releases: 0,
            said: None,
            trouble: None,
        }
    }
}

/// The findings about the nodes of a request.
#[derive(Debug)]
pub(super) struct Met {
    /// The nodes that count, ascending by id.
    pub(super) nodes: Vec<NodeState>,
    /// The daemon of this machine, if it encloses the request and answers.
    pub(super) here: Option<NodeId>,
}

/// The failure of a request without a node that it needs.
fn unreached(which: &str, NodeFailure { what, hint, permanent }: NodeFailure) -> NodeFailure {
    let usual = "make sure that it answers once; after that, other nodes can stand in for it";
    let hint = hint.or_else(|| Some(usual.to_owned()));
    NodeFailure { what: format!("cannot reach {which}: {what}"), hint, permanent }
}

/// The failure if two names lead to one daemon.
pub(super) fn one_daemon(one: &Node, other: &Node, what: &str) -> NodeFailure {
    let what = format!("{} and {} are the same daemon: {what}", one.name, other.name);
    NodeFailure::permanent(what).hint("name each daemon once")
}

/// A node that is being asked for its identity.
struct Asked {
    at: usize,
    member: Member,
    result: Option<Result<Box<NodeIdentity>, NodeFailure>>,
}

impl Asked {
    fn new(at: usize, node: Node, request: &NodesRequest) -> Self {
        let member = Member::with_ttl(node, request.ttl_ms);
        Self { at, member, result: None }
    }

    fn fail(&mut self, failure: NodeFailure) {
        self.member.close();
        self.result.get_or_insert(Err(failure));
    }
}

/// Finds out about the nodes of a request. Asks those that were not met before, and the daemon of
/// this machine if it encloses the request. The error is `None` if the caller gave up.
pub(super) fn meet(
    request: &NodesRequest,
    host: &mut dyn Host,
) -> Result<Met, Option<NodeFailure>> {
    let mut met = meet_nodes(request, host)?;
    if request.under_frame.is_none() {
        return Ok(met);
    }
    let is_local = |known: &&NodeState| request.nodes[known.at].address == NodeAddress::Local;
    met.here = met.nodes.iter().find(is_local).map(|known| known.id);
    if met.here.is_none() {
        let mut asked = [Asked::new(0, Node::at(NodeAddress::Local), request)];
        ask_all(&mut asked, request, host)?;
        let [Asked { result, .. }] = asked;
        met.here = result.and_then(Result::ok).map(|identity| identity.known.node);
    }
    Ok(met)
}

fn meet_nodes(request: &NodesRequest, host: &mut dyn Host) -> Result<Met, Option<NodeFailure>> {
    let mut known = Vec::new();
    let mut asked = Vec::new();
    for (at, node) in request.nodes.iter().enumerate() {
        match request.around.known_nodes.known(&node.address)? {
            Some(recorded) => {
                known.push(NodeState::unasked(at, recorded.node, node, request.ttl_ms));
            }
            None => asked.push(Asked::new(at, node.clone(), request)),
        }
    }
    ask_all(&mut asked, request, host)?;
    let mut met = Vec::new();
    for Asked { at, member, result, .. } in asked {
        let node = &request.nodes[at];
        match result {
            Some(Ok(identity)) => {
                let NodeIdentity { known: recorded, grants_from_ms: left_ms, .. } = *identity;
                request.around.known_nodes.meet(node, &recorded)?;
                if node.address != NodeAddress::Local {
                    met.push((node, recorded.clone()));
                }
                let grants_from = left_ms.map(|left_ms| boottime_ms().saturating_add(left_ms));
                let state = NodeState::unasked(at, recorded.node, node, request.ttl_ms);
                known.push(NodeState { grants_from, member, ..state });
            }
            Some(Err(failure)) => {
                let name = &node.name;
                if request.require != Require::Any && !request.require.counts_the_alive() {
                    let which = format!("{name}, which canal has never reached");
                    return Err(Some(unreached(&which, failure)));
                }
                let why = &failure.what;
                let text = format!("skipping {name}, which canal has never reached: {why}");
                host.say(News::Note(text));
                if known.is_empty() && at + 1 == request.nodes.len() {
                    let which = format!("any of the nodes; {name}");
                    return Err(Some(unreached(&which, failure)));
                }
            }
            None => return Err(None),
        }
    }
    if !met.is_empty() {
        host.say(News::Note(wording::met(&met)));
    }
    known.sort_by_key(|known| known.id);
    if let Some(pair) = known.windows(2).find(|pair| pair[0].id == pair[1].id) {
        let [one, other] = [&pair[0], &pair[1]].map(|known| &request.nodes[known.at]);
        let recorded = |node: &Node| request.around.known_nodes.known(&node.address).ok().flatten();
        let what = recorded(one).or_else(|| recorded(other));
        let what = what.map_or_else(|| format!("node {}", pair[0].id), |it| it.shown());
        return Err(Some(one_daemon(one, other, &what)));
    }
    Ok(Met { nodes: known, here: None })
}

/// Asks all of them at once, each until it has answered or is out of reach.
fn ask_all(
    asked: &mut [Asked],
    request: &NodesRequest,
    host: &mut dyn Host,
) -> Result<(), Option<NodeFailure>> {
    let meet_ms = request.asked.wait_ms.map_or(u64::MAX, |wait_ms| wait_ms.max(MEET_MS));
    let until = request.asked_at.saturating_add(meet_ms);
    for one in asked.iter_mut() {
        if let Err(failure) = one.member.open(&request.around) {
            one.fail(failure);
        }
    }
    while asked.iter().any(|one| one.result.is_none()) {
        let left_ms = until.saturating_sub(boottime_ms());
        sleep(asked.iter().map(|one| &one.member), host.polled(), left_ms)
            .map_err(NodeFailure::from)?;
        if host.turn(boottime_ms()) != Wish::GoOn {
            return Err(None);
        }
        for one in asked.iter_mut() {
            for heard in one.member.turn() {
                match heard {
                    Heard::Identity(identity) => one.result = Some(Ok(identity)),
                    Heard::Away(failure) => one.fail(failure),
                    _ => {}
                }
            }
            if one.result.is_none() && boottime_ms() >= until {
                one.fail(NodeFailure::passing("it does not answer"));
            }
        }
    }
    Ok(())
}
