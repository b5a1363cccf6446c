//! `canal leader`: shows the leader that holds a lock, at a daemon, or at several nodes if enough
//! of them agree on it.

use itertools::Itertools as _;
use serde::Serialize;

use crate::cli::node_list::{around, listed};
use crate::cli::wording::holders_and_waiters::holder;
use crate::cli::{Failed, LeaderArgs, Now, Result, Target, sanitize, stderr, stdout};
use crate::client::Watch;
use crate::nodes::Require;
use crate::protocol::{HolderInfo, Leader, LeaderQuery};
use crate::run::OwnCode;
use crate::run::nodes::{LeaderAtNodes, LeaderView, NodeState, NodeView};
use crate::sys::clock::boottime_ms;

/// The message if the daemon cannot reach its engine.
const STALE: &str = "the daemon cannot reach its engine, so this may be out of date";

/// How long to wait for nodes that have not answered, if they could change the result.
const PATIENCE_MS: u64 = 15_000;

/// A line of `--json`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    key: &'a str,
    #[serde(flatten)]
    said: &'a Leader,
    /// For nodes: how many must name the leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    need: Option<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<NodeLine<'a>>,
}

/// The answer of one node in `--json`.
#[derive(Debug, Serialize)]
struct NodeLine<'a> {
    name: &'a str,
    /// `leader` (the node's holder is a part of the leading request), `other` (of another request),
    /// `none`, `not_exclusive` or `away`.
    state: &'static str,
    /// A message for users; null if there is none.
    message: Option<&'a str>,
}

pub(crate) fn run(args: &LeaderArgs, target: &Target) -> Result {
    let (key, json) = (args.name.as_str(), args.json);
    if args.on.is_empty() {
        let mut client = target.connect()?;
        let question = Question { key, json, need: 1 };
        let query = LeaderQuery { key: key.to_owned() };
        let of_daemon = |said| LeaderView { said, nodes: Vec::new() };
        if !args.watch {
            return question.answer(&of_daemon(client.leader(&query)?), "no one holds it");
        }
        let mut watch = Watch::of_leader(query);
        return question.watch(|| Ok(watch.next(&mut client, None)?.map(of_daemon)));
    }
    let nodes = listed(&args.on, target)?;
    let need = args.require.unwrap_or(Require::Majority).least(nodes.len());
    let around = around(target, nodes);
    let mut asked = LeaderAtNodes::new(key, need, &around);
    let question = Question { key, json, need };
    let view = first(&mut asked)?;
    if args.watch {
        if question.is_hopeless(&view) {
            return Err(question.unknown(&view));
        }
        let mut first = Some(view);
        return question.watch(|| match first.take() {
            None => asked.turn().map(|()| Some(asked.view())).map_err(Failed::from),
            first => Ok(first),
        });
    }
    if view.said.stale {
        return Err(question.unknown(&view));
    }
    question.exclusive(&view.nodes)?;
    let vacant = format!("no request holds it on {need} of the {} nodes", view.nodes.len());
    question.answer(&view, &vacant)
}

/// The facts whose change is news: the leader, its note, and whether that may be out of date.
fn news(Leader { leader, stale }: &Leader) -> impl PartialEq {
    let leader = leader.as_ref().map(|leader| {
        let run = leader.over_nodes.as_deref().map(|over| over.run);
        (run, leader.token, leader.note.as_deref())
    });
    (leader, stale)
}

/// The question for a leader.
struct Question<'a> {
    key: &'a str,
    json: bool,
    /// How many nodes must name the leader.
    need: usize,
}

impl Question<'_> {
    /// Prints the leader, or that there is none and why.
    fn answer(&self, view: &LeaderView, vacant: &str) -> Result {
        let Leader { leader, stale } = &view.said;
        stdout::json_if(self.json, &self.line(view))?;
        if !self.json {
            let text = leader.as_ref().map(|leader| text(self.key, leader, &Now::here()));
            stdout::print(&text.unwrap_or_default())?;
            view.nodes.iter().filter_map(away).for_each(|line| stderr::note(&line));
        }
        if *stale {
            stderr::note(STALE);
        }
        if leader.is_some() {
            return Ok(());
        }
        stderr::note(&format!("`{}` has no leader: {vacant}", self.key));
        Err(Failed::silent(OwnCode::NotAcquired.number()))
    }

    /// Prints a line for the leader now and after each change, until the output has no reader left.
    fn watch(&self, mut next: impl FnMut() -> Result<Option<LeaderView>>) -> Result {
        let mut last: Option<LeaderView> = None;
        while let Some(view) = next()? {
            self.exclusive(&view.nodes)?;
            let before = last.as_ref().map(|last| &last.nodes[..]).unwrap_or_default();
            changes(before, &view.nodes).iter().for_each(|line| stderr::note(line));
            // The first state from the next daemon may repeat the last one.
            if last.as_ref().is_none_or(|last| news(&last.said) != news(&view.said)) {
                let undecided = undecided(&view.nodes).filter(|_| view.said.stale);
                undecided.iter().for_each(|line| stderr::note(line));
                if !stdout::print_json(&self.line(&view))? {
                    break;
                }
            }
            last = Some(view);
        }
        Ok(())
    }

    /// Whether too few nodes could still answer, unless a user intervenes.
    fn is_hopeless(&self, view: &LeaderView) -> bool {
        let may_answer =
            |node: &&NodeView| !matches!(&node.state, NodeState::Away(it) if it.permanent);
        view.said.stale && view.nodes.iter().filter(may_answer).count() < self.need
    }

    fn unknown(&self, view: &LeaderView) -> Failed {
        let away = view.nodes.iter().filter_map(away).join("; ");
        let hint = view.nodes.iter().find_map(|node| match &node.state {
            NodeState::Away(failure) => failure.hint.clone(),
            _ => None,
        });
        let must = format!("{} of {} nodes must name the leader", self.need, view.nodes.len());
        let unknown = format!("the leader of `{}` is unknown: {away}", self.key);
        Failed::new(unknown).hint(hint.unwrap_or(must))
    }

    /// # Errors
    /// Several holders can have the key at once, at as many nodes as must name a leader.
    fn exclusive(&self, nodes: &[NodeView]) -> Result {
        let mut why = nodes.iter().filter_map(|node| match &node.state {
            NodeState::NotExclusive(why) => Some(format!("{}: {why}", node.name)),
            _ => None,
        });
        let nodes = why.clone().count();
        let Some(why) = why.next().filter(|_| nodes >= self.need) else { return Ok(()) };
        let hint = "run candidates with -j 1: only a lock with one slot has a leader";
        Err(Failed::new(why).hint(hint))
    }

    fn line<'a>(&'a self, LeaderView { said, nodes }: &'a LeaderView) -> Line<'a> {
        let need = (!nodes.is_empty()).then_some(self.need);
        let nodes = nodes.iter().map(|node| node_line(node, said.leader.as_ref())).collect();
        Line { key: self.key, said, need, nodes }
    }
}

/// The view once it is decided, or once each node has answered or is away.
fn first(asked: &mut LeaderAtNodes<'_>) -> Result<LeaderView> {
    let until = boottime_ms() + PATIENCE_MS;
    loop {
        asked.turn()?;
        let view = asked.view();
        let is_settled = view.nodes.iter().all(|node| node.state != NodeState::Asked);
        if !view.said.stale || is_settled || boottime_ms() >= until {
            return Ok(view);
        }
    }
}

fn node_line<'a>(node: &'a NodeView, leader: Option<&HolderInfo>) -> NodeLine<'a> {
    let leads = |holder: &HolderInfo| {
        let request = |it: &HolderInfo| (it.token, it.over_nodes.as_deref().map(|it| it.run));
        leader.is_some_and(|leader| request(leader) == request(holder))
    };
    let (state, message) = match &node.state {
        NodeState::Holds(_, holder) if leads(holder) => ("leader", None),
        NodeState::Holds(..) => ("other", None),
        NodeState::None => ("none", None),
        NodeState::NotExclusive(why) => ("not_exclusive", Some(why.as_str())),
        NodeState::Away(failure) => ("away", Some(failure.what.as_str())),
        NodeState::Asked => ("away", None),
    };
    NodeLine { name: &node.name, state, message }
}

/// `web3 is unreachable: ssh: connection timed out`.
fn away(node: &NodeView) -> Option<String> {
    let why = match &node.state {
        NodeState::Away(failure) => &failure.what,
        NodeState::Asked => "it does not answer",
        _ => return None,
    };
    Some(format!("{} is unreachable: {why}", node.name))
}

/// The nodes that went away, and those that answer again. The first answer of a node is not news.
fn changes(before: &[NodeView], now: &[NodeView]) -> Vec<String> {
    let is_away = |node: &NodeView| matches!(node.state, NodeState::Away(_));
    let before = before.iter().map(is_away).chain(std::iter::repeat(false));
    let line = |(node, was_away): (&NodeView, bool)| match (was_away, is_away(node)) {
        (false, true) => away(node),
        (true, false) => Some(format!("{} is answering again", node.name)),
        (true, true) | (false, false) => None,
    };
    now.iter().zip(before).filter_map(line).collect()
}

/// Why the leader is unknown, if it is because of nodes that are away.
fn undecided(nodes: &[NodeView]) -> Option<String> {
    let is_away = |node: &&NodeView| matches!(node.state, NodeState::Away(_) | NodeState::Asked);
    let names: Vec<&str> = nodes.iter().filter(is_away).map(|node| node.name.as_str()).collect();
    let be = match names.len() {
        0 => return None,
        1 => "is",
        _ => "are",
    };
    Some(format!("the leader is unknown while {} {be} unreachable", names.join(", ")))
}

/// `leader of scheduler: pid 812 …`, with its start and its token.
fn text(key: &str, leader: &HolderInfo, now: &Now) -> String {
    let (key, who) = (sanitize(key), holder(leader, now));
    let since = now.clock(&leader.since);
    format!("leader of {key}: {who}\n  since {since}, token {}\n", leader.token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::wording::holders_and_waiters::tests::somebody;
    use crate::cli::wording::time::tests::at;
    use crate::nodes::leader_by_majority::Claim;
    use crate::protocol::{NodeFailure, RunId};

    fn question(key: &str) -> Question<'_> {
        Question { key, json: true, need: 2 }
    }

    const SINCE: &str = "2026-11-20T14:02:11Z";

    #[test]
    fn a_leader_is_shown_with_its_note_and_its_token() {
        let mut leader = somebody(812, Some("./scheduler"), SINCE);
        leader.note = Some("http://web2:8080".to_owned());
        assert_eq!(
            text("scheduler", &leader, &at("2026-11-20T14:05:23Z")),
            "leader of scheduler: pid 812 `./scheduler` (root, for 3m12s), note: http://web2:8080\n  \
             since 14:02:11, token 77\n"
        );
    }

    #[test]
    fn a_line_says_that_there_is_no_leader() {
        let question = question("scheduler");
        let said = Leader { leader: None, stale: false };
        let line = stdout::json(&question.line(&LeaderView { said, nodes: Vec::new() })).unwrap();
        assert_eq!(line, "{\"key\":\"scheduler\",\"leader\":null,\"stale\":false}\n");
    }

    #[test]
    fn another_token_or_note_is_news_and_another_age_is_not() {
        let of = |token, note: Option<&str>, since: &str| {
            let mut leader = somebody(812, None, since);
            (leader.token, leader.note) = (token, note.map(str::to_owned));
            Leader { leader: Some(leader), stale: false }
        };
        let none = |stale| Leader { leader: None, stale };
        let first = of(1, Some("a"), SINCE);
        let is_news = |before: &Leader, now: &Leader| news(before) != news(now);
        assert!(!is_news(&first, &of(1, Some("a"), "2026-11-20T15:00:00Z")));
        assert!(is_news(&first, &of(2, Some("a"), SINCE)));
        assert!(is_news(&first, &of(1, Some("b"), SINCE)));
        assert!(is_news(&first, &none(false)));
        assert!(is_news(&none(true), &none(false)));
    }

    fn node(name: &str, state: NodeState) -> NodeView {
        NodeView { name: name.to_owned(), state }
    }

    fn leads() -> NodeState {
        let claim = Claim { run: RunId(1), token: 77, need: 1 };
        NodeState::Holds(claim, Box::new(somebody(812, None, SINCE)))
    }

    fn cut() -> NodeState {
        NodeState::Away(NodeFailure::passing("ssh: connection timed out"))
    }

    #[test]
    fn each_change_of_a_node_is_said_once() {
        let well = vec![node("a", leads()), node("b", NodeState::Asked)];
        assert_eq!(changes(&[], &well), [""; 0]);
        let lost = vec![node("a", leads()), node("b", cut())];
        assert_eq!(changes(&well, &lost), ["b is unreachable: ssh: connection timed out"]);
        let refused = NodeState::Away(NodeFailure::passing("ssh: connection refused"));
        let still = vec![node("a", leads()), node("b", refused)];
        assert_eq!(changes(&lost, &still), [""; 0]);
        let back = vec![node("a", leads()), node("b", NodeState::None)];
        assert_eq!(changes(&still, &back), ["b is answering again"]);
    }

    #[test]
    fn a_line_names_the_nodes_and_says_that_too_few_of_them_answer() {
        let nodes = vec![node("a", NodeState::None), node("b", cut()), node("c", cut())];
        let view = LeaderView { said: Leader { leader: None, stale: true }, nodes };
        let question = question("x");
        assert_eq!(
            stdout::json(&question.line(&view)).unwrap(),
            "{\"key\":\"x\",\"leader\":null,\"stale\":true,\"need\":2,\"nodes\":[\
             {\"name\":\"a\",\"state\":\"none\",\"message\":null},\
             {\"name\":\"b\",\"state\":\"away\",\"message\":\"ssh: connection timed out\"},\
             {\"name\":\"c\",\"state\":\"away\",\"message\":\"ssh: connection timed out\"}]}\n"
        );
        assert_eq!(
            undecided(&view.nodes).unwrap(),
            "the leader is unknown while b, c are unreachable"
        );
        assert_eq!(
            question.unknown(&view).message,
            "the leader of `x` is unknown: b is unreachable: ssh: connection timed out; c is \
             unreachable: ssh: connection timed out"
        );
    }

    #[test]
    fn a_watch_is_hopeless_only_where_people_must_change_something() {
        let never = NodeState::Away(NodeFailure::permanent("no such host"));
        let question = question("x");
        let view = |states: [&NodeState; 3]| LeaderView {
            said: Leader { leader: None, stale: true },
            nodes: states.map(|state| node("a", state.clone())).into(),
        };
        assert!(question.is_hopeless(&view([&never, &never, &NodeState::None])));
        assert!(!question.is_hopeless(&view([&never, &cut(), &NodeState::None])));
        assert!(!question.is_hopeless(&view([&cut(), &cut(), &cut()])));
    }
}
