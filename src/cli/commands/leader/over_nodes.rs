//! `canal leader --on`: shows the leader at several nodes, if enough of them agree on it.

use serde::Serialize;

use crate::cli::arguments::definition::{Global, LeaderArgs};
use crate::cli::commands::leader::text;
use crate::cli::connect::Target;
use crate::cli::failed::Failed;
use crate::cli::node_list::listed;
use crate::cli::output::stderr::Verbosity;
use crate::cli::output::stdout::{self, ReaderState};
use crate::cli::wording::time::Now;
use crate::client::nodes::pins::Pins;
use crate::nodes::leadership::{Claim, Verdict};
use crate::protocol::HolderInfo;
use crate::run::nodes::{Around, LeaderAtNodes, LeaderView, MeetError, NodeState, NodeView};
use crate::run::{OwnCode, SUCCESS};
use crate::sys::clock::boottime_ms;

/// How long to wait for nodes that have not answered, if they could change the result.
const PATIENCE_MS: u64 = 15_000;

/// A line of `--json`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    key: &'a str,
    leader: Option<&'a HolderInfo>,
    stale: bool,
    /// How many nodes must name the leader.
    need: usize,
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

pub(in crate::cli) fn run(
    args: &LeaderArgs,
    global: &Global,
    verbosity: Verbosity,
) -> Result<u8, Failed> {
    let target = Target::of(global)?;
    let nodes = listed(&args.nodes.on, &target)?;
    let need = args.nodes.least(nodes.len());
    let around = Around {
        near: nodes,
        pins: Pins::of(&target.place),
        here: target.place.clone(),
        options: target.options(),
    };
    let key = args.name.as_str();
    let asked = LeaderAtNodes::new(key, need, &around);
    let question = Question { key, need, verbosity };
    match args.watch {
        true => question.watch(asked),
        false => question.ask(asked, args.json),
    }
}

/// The question to the nodes.
struct Question<'a> {
    key: &'a str,
    need: usize,
    verbosity: Verbosity,
}

impl Question<'_> {
    fn ask(&self, mut asked: LeaderAtNodes<'_>, json: bool) -> Result<u8, Failed> {
        let view = first(&mut asked)?;
        if view.verdict == Verdict::Unknown {
            return Err(self.unknown(&view));
        }
        self.exclusive(&view)?;
        if json {
            stdout::print(&self.line(&view)?)?;
        } else if let Some(leader) = &view.leader {
            stdout::print(&text(self.key, leader, &Now::here()))?;
        }
        if !json {
            view.nodes.iter().filter_map(away).for_each(|line| self.verbosity.note(&line));
        }
        if view.leader.is_some() {
            return Ok(SUCCESS);
        }
        self.verbosity.note(&format!(
            "`{}` has no leader: no request holds it at {} of the {} nodes",
            self.key,
            self.need,
            view.nodes.len()
        ));
        Err(Failed::silent(OwnCode::NotAcquired.number()))
    }

    /// Prints a line now and after each change, until the output has no reader left.
    fn watch(&self, mut asked: LeaderAtNodes<'_>) -> Result<u8, Failed> {
        let mut view = first(&mut asked)?;
        if self.is_hopeless(&view) {
            return Err(self.unknown(&view));
        }
        let (mut told, mut before) = (None, Vec::new());
        loop {
            self.exclusive(&view)?;
            changes(&before, &view.nodes).iter().for_each(|line| self.verbosity.note(line));
            before.clone_from(&view.nodes);
            let news = Some(News::of(&view));
            if news != told {
                told = news;
                if let Some(words) = undecided(&view) {
                    self.verbosity.note(&words);
                }
                if stdout::print(&self.line(&view)?)? == ReaderState::Gone {
                    return Ok(SUCCESS);
                }
            }
            asked.turn().map_err(failed)?;
            view = asked.view();
        }
    }

    /// Whether too few nodes could still answer, unless a user intervenes.
    fn is_hopeless(&self, view: &LeaderView) -> bool {
        let hopeless = |node: &&NodeView| match &node.state {
            NodeState::Away(failure) => failure.permanent,
            _ => false,
        };
        let left = view.nodes.len() - view.nodes.iter().filter(hopeless).count();
        view.verdict == Verdict::Unknown && left < self.need
    }

    fn unknown(&self, view: &LeaderView) -> Failed {
        let away: Vec<String> = view.nodes.iter().filter_map(away).collect();
        let hint = view.nodes.iter().find_map(|node| match &node.state {
            NodeState::Away(failure) => failure.hint.clone(),
            _ => None,
        });
        let message = format!("the leader of `{}` is unknown: {}", self.key, away.join("; "));
        let need = self.need;
        Failed::new(message).hint(hint.unwrap_or_else(|| {
            format!("{need} of {} nodes must name the leader", view.nodes.len())
        }))
    }

    /// # Errors
    /// Several holders can have the key at once, at as many nodes as must name a leader.
    fn exclusive(&self, view: &LeaderView) -> Result<(), Failed> {
        let mut why = view.nodes.iter().filter_map(|node| match &node.state {
            NodeState::NotExclusive(why) => Some(format!("{}: {why}", node.name)),
            _ => None,
        });
        let nodes = why.clone().count();
        match why.next().filter(|_| nodes >= self.need) {
            None => Ok(()),
            Some(why) => Err(Failed::new(why)
                .hint("only a lock of one slot has a leader; let candidates take it with -j 1")),
        }
    }

    fn line(&self, view: &LeaderView) -> Result<String, Failed> {
        stdout::json(&Line {
            key: self.key,
            leader: view.leader.as_ref(),
            stale: view.verdict == Verdict::Unknown,
            need: self.need,
            nodes: view.nodes.iter().map(node_line).collect(),
        })
    }
}

/// The view once it is decided, or once each node has answered or is away.
fn first(asked: &mut LeaderAtNodes<'_>) -> Result<LeaderView, Failed> {
    let until = boottime_ms() + PATIENCE_MS;
    loop {
        asked.turn().map_err(failed)?;
        let view = asked.view();
        if view.verdict != Verdict::Unknown || view.is_settled() || boottime_ms() >= until {
            return Ok(view);
        }
    }
}

fn failed(error: MeetError) -> Failed {
    let failed = Failed::new(error.to_string());
    match error.hint() {
        Some(hint) => failed.hint(hint),
        None => failed,
    }
}

/// The facts about a leader whose change is news.
#[derive(Debug, PartialEq, Eq)]
struct News {
    leader: Option<(Claim, Option<String>)>,
    is_unknown: bool,
}

impl News {
    fn of(view: &LeaderView) -> Self {
        let note = view.leader.as_ref().and_then(|leader| leader.note.clone());
        let (leader, is_unknown) = match view.verdict {
            Verdict::Led(claim) => (Some((claim, note)), false),
            Verdict::Vacant => (None, false),
            Verdict::Unknown => (None, true),
        };
        Self { leader, is_unknown }
    }
}

fn node_line(node: &NodeView) -> NodeLine<'_> {
    let (state, message) = match &node.state {
        NodeState::Leader => ("leader", None),
        NodeState::Other => ("other", None),
        NodeState::None => ("none", None),
        NodeState::NotExclusive(why) => ("not_exclusive", Some(why.as_str())),
        NodeState::Away(failure) => ("away", Some(failure.what.as_str())),
        NodeState::Asked => ("away", None),
    };
    NodeLine { name: &node.name, state, message }
}

/// `web3 is away: ssh: connection timed out`.
fn away(node: &NodeView) -> Option<String> {
    match &node.state {
        NodeState::Away(failure) => Some(format!("{} is away: {}", node.name, failure.what)),
        NodeState::Asked => Some(format!("{} is away: it does not answer", node.name)),
        _ => None,
    }
}

/// The nodes that went away, and those that answer again. The first answer of a node is not news.
fn changes(before: &[NodeView], now: &[NodeView]) -> Vec<String> {
    let is_away = |node: &NodeView| matches!(node.state, NodeState::Away(_));
    let mut lines = Vec::new();
    for (at, node) in now.iter().enumerate() {
        let was_away = before.get(at).is_some_and(is_away);
        match (was_away, is_away(node)) {
            (false, true) => lines.extend(away(node)),
            (true, false) => lines.push(format!("{} answers again", node.name)),
            (true, true) | (false, false) => {}
        }
    }
    lines
}

/// Why the leader is unknown.
fn undecided(view: &LeaderView) -> Option<String> {
    if view.verdict != Verdict::Unknown {
        return None;
    }
    let names: Vec<&str> = view
        .nodes
        .iter()
        .filter(|node| matches!(node.state, NodeState::Away(_) | NodeState::Asked))
        .map(|node| node.name.as_str())
        .collect();
    let be = if names.len() == 1 { "is" } else { "are" };
    Some(format!("the leader is unknown while {} {be} away", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::nodes::ssh::NodeFailure;

    fn node(name: &str, state: NodeState) -> NodeView {
        NodeView { name: name.to_owned(), state }
    }

    fn cut() -> NodeState {
        NodeState::Away(NodeFailure::passing("ssh: connection timed out"))
    }

    #[test]
    fn each_change_of_a_node_is_said_once() {
        let well = vec![node("a", NodeState::Leader), node("b", NodeState::Asked)];
        assert_eq!(changes(&[], &well), [""; 0]);
        let lost = vec![node("a", NodeState::Leader), node("b", cut())];
        assert_eq!(changes(&well, &lost), ["b is away: ssh: connection timed out"]);
        let refused = NodeState::Away(NodeFailure::passing("ssh: connection refused"));
        let still = vec![node("a", NodeState::Leader), node("b", refused)];
        assert_eq!(changes(&lost, &still), [""; 0]);
        let back = vec![node("a", NodeState::Leader), node("b", NodeState::None)];
        assert_eq!(changes(&still, &back), ["b answers again"]);
    }

    #[test]
    fn a_line_names_the_nodes_and_says_that_too_few_of_them_answer() {
        let nodes = vec![node("a", NodeState::None), node("b", cut()), node("c", cut())];
        let view = LeaderView { verdict: Verdict::Unknown, leader: None, nodes };
        let question = Question { key: "x", need: 2, verbosity: Verbosity::Silent };
        assert_eq!(
            question.line(&view).unwrap(),
            "{\"key\":\"x\",\"leader\":null,\"stale\":true,\"need\":2,\"nodes\":[\
             {\"name\":\"a\",\"state\":\"none\",\"message\":null},\
             {\"name\":\"b\",\"state\":\"away\",\"message\":\"ssh: connection timed out\"},\
             {\"name\":\"c\",\"state\":\"away\",\"message\":\"ssh: connection timed out\"}]}\n"
        );
        assert_eq!(undecided(&view).unwrap(), "the leader is unknown while b, c are away");
        assert_eq!(
            question.unknown(&view).message,
            "the leader of `x` is unknown: b is away: ssh: connection timed out; c is away: ssh: \
             connection timed out"
        );
    }

    #[test]
    fn a_watch_is_hopeless_only_where_people_must_change_something() {
        let never = NodeState::Away(NodeFailure::permanent("no such host"));
        let question = Question { key: "x", need: 2, verbosity: Verbosity::Silent };
        let view = |states: [&NodeState; 3]| LeaderView {
            verdict: Verdict::Unknown,
            leader: None,
            nodes: states.map(|state| node("a", state.clone())).into(),
        };
        assert!(question.is_hopeless(&view([&never, &never, &NodeState::None])));
        assert!(!question.is_hopeless(&view([&never, &cut(), &NodeState::None])));
        assert!(!question.is_hopeless(&view([&cut(), &cut(), &cut()])));
    }
}
