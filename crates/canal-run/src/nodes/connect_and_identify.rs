//! Finds out which daemons a list of nodes names, before anything else is asked of them: a request
//! carries the ids of all its nodes.

use canal_lock::client::nodes::lease::LeasePart;
use canal_nodes::{Millis, Require};
use canal_protocol::node_address::NodeAddress;
use canal_protocol::{Grant, KnownNode, Node, NodeFailure, NodeId, NodeIdentity};
use canal_sys::clock::boottime_ms;

use super::node_connection::{Heard, Member, sleep};
use super::node_wording;
use super::nodes_request::{Around, Host, News, NodesRequest, PartAnswer, Wish};

/// How long nodes may take to send their identity, if the request does not wait for longer. A
/// request without a limit does not try for longer either: a name that was never reached may be a
/// typing error.
const MEET_MS: Millis = 5_000;

/// How long to wait after a failure that may pass before the next connection is opened.
const RETRY_MS: Millis = 500;

/// A node whose id is known, and its last answers.
#[derive(Debug)]
pub(super) struct NodeState {
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
    pub(super) answer: PartAnswer,
}

impl NodeState {
    /// A node that is not connected.
    pub(super) fn unasked(id: NodeId, node: &Node, ttl_ms: u64) -> Self {
        Self {
            id,
            grants_from: None,
            member: Member::with_ttl(node.clone(), ttl_ms),
            lease: 0,
            grant: None,
            releases: 0,
            answer: PartAnswer { name: node.name.clone(), said: None, trouble: None },
        }
    }

    /// Checks that the daemon which answers now is the one in the plan.
    pub(super) fn check(&mut self, around: &Around, known: &KnownNode) -> Result<(), NodeFailure> {
        around.known_nodes.meet(&self.member.node, known)?;
        if known.node != self.id {
            return Err(NodeFailure::permanent("it is now a different daemon"));
        }
        self.member.reached = true;
        Ok(())
    }

    /// Its part of a lease.
    pub(super) fn part(&self, lease: u32, held: bool) -> LeasePart {
        LeasePart { address: self.member.node.address.clone(), id: self.id, lease, held }
    }
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
    member: Member,
    /// Why the last connection failed.
    trouble: Option<NodeFailure>,
    /// When to open the next connection.
    again_at: Option<Millis>,
    result: Option<Result<Box<NodeIdentity>, NodeFailure>>,
}

impl Asked {
    fn new(node: Node, request: &NodesRequest) -> Self {
        let member = Member::with_ttl(node, request.ttl_ms);
        Self { member, trouble: None, again_at: None, result: None }
    }

    /// Notes that the connection failed. If that may pass, another one is opened soon, unless that
    /// would be after `retry_until`. Tells the user, if the failure is the first.
    fn lose(&mut self, failure: NodeFailure, retry_until: Millis, host: &mut dyn Host) {
        self.member.close();
        if self.result.is_some() {
            return;
        }
        let again_at = boottime_ms().saturating_add(RETRY_MS);
        if failure.permanent || again_at > retry_until {
            self.result = Some(Err(failure));
            return;
        }
        self.again_at = Some(again_at);
        let text = format!("cannot reach {} yet: {}", self.member.node.name, failure.what);
        if self.trouble.replace(failure).is_none() {
            host.say(News::Note(text));
        }
    }

    /// Ends the attempts, if there is no result yet.
    fn give_up(&mut self) {
        if self.result.is_none() {
            self.member.close();
            let silent = || NodeFailure::passing("it does not answer");
            self.result = Some(Err(self.trouble.take().unwrap_or_else(silent)));
        }
    }
}

/// Finds out about the nodes of a request: returns those that count, ascending by id, and the
/// daemon of this machine, if it encloses the request and answers. Asks those that were not met
/// before. The error is `None` if the caller gave up.
pub(super) fn meet(
    request: &NodesRequest,
    host: &mut dyn Host,
) -> Result<(Vec<NodeState>, Option<NodeId>), Option<NodeFailure>> {
    let mut known = Vec::new();
    let mut asked = Vec::new();
    for node in &request.nodes {
        match request.around.known_nodes.known(&node.address)? {
            Some(recorded) => {
                known.push(NodeState::unasked(recorded.node, node, request.ttl_ms));
            }
            None => asked.push(Asked::new(node.clone(), request)),
        }
    }
    // With `any`, a node that was reached before may be enough.
    let needs_none = request.require == Require::Any && !known.is_empty();
    let wait_ms = request.asked.wait_ms.filter(|_| !request.require.counts_the_alive());
    let retry_ms = wait_ms.unwrap_or(0).max(MEET_MS);
    let retry_until = if needs_none { 0 } else { request.asked_at.saturating_add(retry_ms) };
    ask_all(&mut asked, request, retry_until, host)?;
    let (mut met, mut last_failure) = (Vec::new(), None);
    for Asked { member, result, .. } in asked {
        let node = &member.node;
        match result {
            Some(Ok(identity)) => {
                let NodeIdentity { known: recorded, grants_from_ms: left_ms, .. } = *identity;
                request.around.known_nodes.meet(node, &recorded)?;
                if node.address != NodeAddress::Local {
                    met.push((node.clone(), recorded.clone()));
                }
                let grants_from = left_ms.map(|left_ms| boottime_ms().saturating_add(left_ms));
                let state = NodeState::unasked(recorded.node, node, request.ttl_ms);
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
                last_failure = Some(unreached(&format!("any of the nodes; {name}"), failure));
            }
            None => return Err(None),
        }
    }
    if known.is_empty() {
        return Err(last_failure);
    }
    if !met.is_empty() {
        host.say(News::Note(node_wording::met(&met)));
    }
    known.sort_by_key(|known| known.id);
    if let Some(pair) = known.windows(2).find(|pair| pair[0].id == pair[1].id) {
        let [one, other] = [&pair[0], &pair[1]].map(|known| &known.member.node);
        let recorded = |node: &Node| request.around.known_nodes.known(&node.address).ok().flatten();
        let what = recorded(one).or_else(|| recorded(other));
        let what = what.map_or_else(|| format!("node {}", pair[0].id), |it| it.shown());
        return Err(Some(one_daemon(one, other, &what)));
    }
    let is_local = |known: &&NodeState| known.member.node.address == NodeAddress::Local;
    let mut here = known.iter().find(is_local).map(|known| known.id);
    if here.is_none() && request.under_frame.is_some() {
        let mut asked = [Asked::new(Node::at(NodeAddress::Local), request)];
        // The request can do without it.
        ask_all(&mut asked, request, 0, host)?;
        let [Asked { result, .. }] = asked;
        here = result.and_then(Result::ok).map(|identity| identity.known.node);
    }
    Ok((known, here))
}

/// Asks all of them at once, each until it has answered or is out of reach. After a failure that
/// may pass, asks again until `retry_until`; with `any`, only while no other node has answered.
fn ask_all(
    asked: &mut [Asked],
    request: &NodesRequest,
    retry_until: Millis,
    host: &mut dyn Host,
) -> Result<(), Option<NodeFailure>> {
    let meet_ms = request.asked.wait_ms.map_or(u64::MAX, |wait_ms| wait_ms.max(MEET_MS));
    let until = request.asked_at.saturating_add(meet_ms);
    for one in asked.iter_mut() {
        one.again_at = Some(0);
    }
    loop {
        let now = boottime_ms();
        for one in asked.iter_mut() {
            if one.again_at.take_if(|at| *at <= now).is_some()
                && let Err(failure) = one.member.open(&request.around)
            {
                one.lose(failure, retry_until, host);
            }
        }
        let has_answered = asked.iter().any(|one| matches!(one.result, Some(Ok(_))));
        let is_enough = request.require == Require::Any && has_answered;
        for one in asked.iter_mut().filter(|one| is_enough && one.again_at.is_some()) {
            one.give_up();
        }
        if asked.iter().all(|one| one.result.is_some()) {
            return Ok(());
        }
        let due = asked.iter().filter_map(|one| one.again_at).fold(until, Millis::min);
        let left_ms = due.saturating_sub(boottime_ms());
        sleep(asked.iter().map(|one| &one.member), host.polled(), left_ms)
            .map_err(NodeFailure::from)?;
        if host.turn(boottime_ms()) != Wish::GoOn {
            return Err(None);
        }
        for one in asked.iter_mut() {
            for heard in one.member.turn() {
                match heard {
                    Heard::Identity(identity) => one.result = Some(Ok(identity)),
                    Heard::Away(failure) => one.lose(failure, retry_until, host),
                    Heard::Answer(_) => {}
                }
            }
            if boottime_ms() >= until {
                one.give_up();
            }
        }
    }
}
