//! `canal status --graph`: prints all waiters and what blocks them, for Graphviz.

use std::collections::{BTreeMap, BTreeSet};

use crate::cli::wording::participant::{by_mode, named, short_command};
use crate::cli::{Global, Result, connect, plural, sanitize, stdout};
use crate::protocol::{BlockerInfo, GraphQuery, Mode, PartyInfo, WaitInfo, Waits};

pub(super) fn run(json: bool, global: &Global) -> Result {
    let waits = connect::client(global)?.graph(&GraphQuery {})?;
    stdout::report(&waits, json, || dot(&waits))
}

/// The graph in DOT: a node for each session, and an edge from each waiter to each of its blockers.
fn dot(waits: &Waits) -> String {
    let mut text = "digraph canal {\n  rankdir=LR;\n  node [shape=box];\n".to_owned();
    for (session, processes) in nodes(waits) {
        let mut label = quoted(&sanitize(session));
        for line in processes {
            label += "\\n";
            label += &quoted(&line);
        }
        text += &format!("  \"{}\" [label=\"{label}\"];\n", quoted(&sanitize(session)));
    }
    for edge in edges(waits) {
        text += &edge;
    }
    if waits.left_out > 0 {
        text += &format!("  // {} left out\n", plural(waits.left_out, "more wait", "more waits"));
    }
    text + "}\n"
}

/// The sessions by name, each with its processes that hold or wait.
fn nodes(waits: &Waits) -> BTreeMap<&str, BTreeSet<String>> {
    let mut nodes: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let parties = waits.waits.iter().flat_map(|wait| {
        std::iter::once(&wait.waiter).chain(wait.blockers.iter().map(|blocker| &blocker.party))
    });
    for party in parties {
        nodes.entry(&party.session).or_default().insert(line(party));
    }
    nodes
}

/// `pid 812 make test`.
fn line(party: &PartyInfo) -> String {
    let pid = named(party.pid, party.lease);
    match &party.command {
        Some(command) => format!("{pid} {}", short_command(command)),
        None => pid,
    }
}

/// Each edge once, in the order of the waits.
fn edges(waits: &Waits) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let all = waits
        .waits
        .iter()
        .flat_map(|wait| wait.blockers.iter().map(move |blocker| edge(wait, blocker)));
    all.filter(|edge| seen.insert(edge.clone())).collect()
}

/// Solid to a holder, dashed to a waiter that is ahead in the queue.
fn edge(wait: &WaitInfo, blocker: &BlockerInfo) -> String {
    let node = |session: &str| format!("\"{}\"", quoted(&sanitize(session)));
    let (from, to) = (node(&wait.waiter.session), node(&blocker.party.session));
    let mut label = quoted(&format!("{} {}", mode(wait.mode), sanitize(&wait.key)));
    if blocker.key != wait.key {
        label += "\\n";
        label += &quoted(&format!("by {} {}", mode(blocker.mode), sanitize(&blocker.key)));
    }
    let style = if blocker.holds { "" } else { ", style=dashed" };
    format!("  {from} -> {to} [label=\"{label}\"{style}];\n")
}

fn mode(mode: Mode) -> &'static str {
    by_mode(mode, ["slots of", "read", "write"])
}

/// Quotes a text for DOT, where `\` begins an escape and `&` an HTML entity.
fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('&', "&amp;")
}

#[cfg(test)]
mod tests {
    use super::super::why::tests::{blocker, wait};
    use super::*;
    use crate::cli::wording::participant::tests::someone;

    #[test]
    fn without_waiters_the_graph_is_empty() {
        assert_eq!(
            dot(&Waits::default()),
            "digraph canal {\n  rankdir=LR;\n  node [shape=box];\n}\n"
        );
    }

    #[test]
    fn sessions_are_nodes_and_waits_are_edges() {
        let (one, two) = (someone(9, r#"sh -c "a\n" && b"#, "s9"), someone(10, "make", "s10"));
        let ld = someone(11, "ld", "s10");
        let waits = vec![
            wait(
                one.clone(),
                ("db", Mode::Write),
                vec![
                    blocker(two.clone(), ("db", Mode::Read), true),
                    blocker(two.clone(), ("db", Mode::Read), true),
                    blocker(two, ("db/x", Mode::Counted), true),
                ],
            ),
            wait(ld, ("l", Mode::Counted), vec![blocker(one, ("l", Mode::Counted), false)]),
        ];
        assert_eq!(
            dot(&Waits { waits, left_out: 3, ..Waits::default() }),
            r#"digraph canal {
  rankdir=LR;
  node [shape=box];
  "s10" [label="s10\npid 10 make\npid 11 ld"];
  "s9" [label="s9\npid 9 sh -c \"a\\n\" &amp;&amp; b"];
  "s9" -> "s10" [label="write db"];
  "s9" -> "s10" [label="write db\nby slots of db/x"];
  "s10" -> "s9" [label="slots of l", style=dashed];
  // 3 more waits left out
}
"#
        );
    }
}
