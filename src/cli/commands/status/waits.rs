//! `canal status --why`: shows a chain of waits to its end, and the waiters of its first process.
//! `canal status --graph`: prints all waiters and what blocks them, for Graphviz.
//!
//! In a chain, each wait appears once. If a ring closes, or two paths lead to the same waiter, a
//! reference replaces the repetition.

use std::collections::{BTreeMap, BTreeSet};

use itertools::Itertools as _;

use crate::cli::wording::holders_and_waiters::{
    by_mode, held, named, party, short_command, wanted,
};
use crate::cli::{Now, Result, Target, plural, sanitize, stdout};
use crate::protocol::{BlockerInfo, NoParameters, PartyInfo, WaitInfo, Waits, WhyQuery};

/// The depth beyond which a chain is not indented further.
const DEPTH_MAX: usize = 20;

pub(super) fn why(of: &WhyQuery, json: bool, target: &Target) -> Result {
    let waits = target.connect()?.why(of)?;
    stdout::report(&waits, json, || text(of, &waits, &Now::here()))
}

/// The chain of the target's waits, and the waiters for the target.
pub(crate) fn text(target: &WhyQuery, waits: &Waits, now: &Now) -> String {
    story(target, waits, now) + &waiters(waits, now)
}

fn story(target: &WhyQuery, waits: &Waits, now: &Now) -> String {
    if waits.waits.is_empty() {
        return format!("{} is not waiting for anything\n", shown(target));
    }
    let all = 0..waits.waits.len();
    let of = all.clone().into_group_map_by(|at| waits.waits[*at].waiter.session.as_str());
    let mut told = vec![false; waits.waits.len()];
    let mut text = String::new();
    for root in all {
        // An explicit stack, because a chain can be as long as the number of sessions.
        let mut stack = vec![Pending::Wait(root, 0, None)];
        while let Some(next) = stack.pop() {
            let (depth, line) = match next {
                Pending::Wait(at, ..) if told[at] => continue,
                Pending::Wait(at, depth, named) => {
                    told[at] = true;
                    let wait = &waits.waits[at];
                    let more = Some(wait.blockers_left_out).filter(|more| *more > 0);
                    stack.extend(more.map(|more| Pending::More(more, depth + 1)));
                    let blockers = wait.blockers.iter().rev();
                    stack.extend(blockers.map(|blocker| Pending::Blocker(blocker, depth + 1)));
                    let is_named = named == Some(wait.waiter.pid);
                    let who = if is_named { "it".to_owned() } else { party(&wait.waiter) };
                    (depth, wait_line(wait, &who, now))
                }
                Pending::Blocker(blocker, depth) => {
                    let party = &blocker.party;
                    let of = of.get(party.session.as_str()).map_or(&[][..], Vec::as_slice);
                    let wait = |at: &usize| Pending::Wait(*at, depth + 1, Some(party.pid));
                    let before = stack.len();
                    stack.extend(of.iter().rev().filter(|at| !told[**at]).map(wait));
                    let follows = stack.len() > before;
                    let is_shown = !follows && !of.is_empty();
                    (depth, blocker_line(blocker, follows, is_shown, now))
                }
                Pending::More(n, depth) => (depth, format!("and {}", plural(n, "other", "others"))),
            };
            text += &format!("{}{line}\n", "  ".repeat(depth.min(DEPTH_MAX)));
        }
    }
    if waits.left_out > 0 {
        let more = plural(waits.left_out, "more wait is", "more waits are");
        text += &format!("{more} left out\n");
    }
    text
}

/// `pid 812`, `session s17`.
pub(crate) fn shown(target: &WhyQuery) -> String {
    match target {
        WhyQuery { session: Some(session), .. } => format!("session {session}"),
        WhyQuery { pid, .. } => format!("pid {}", pid.unwrap_or_default()),
    }
}

/// The waiters of the target: a line for each request.
fn waiters(waits: &Waits, now: &Now) -> String {
    let Waits { waiters, waiters_left_out, .. } = waits;
    let waiting = plural(waiters.len() as u64, "request is waiting", "requests are waiting");
    let mut text = format!("{waiting} for it:\n");
    if waiters.is_empty() {
        text.clear();
    }
    let line = |it: &WaitInfo| format!("  {}\n", wait_line(it, &party(&it.waiter), now));
    text.extend(waiters.iter().map(line));
    if *waiters_left_out > 0 {
        let more = plural(*waiters_left_out, "more wait was", "more waits were");
        text += &format!("{more} left out because there are too many\n");
    }
    text
}

/// `pid 900 `./deploy.sh` (bob, s21) has been waiting to write `db` since 14:05:03 (20s): why`.
fn wait_line(wait: &WaitInfo, who: &str, now: &Now) -> String {
    let WaitInfo { key, mode, since, reason, .. } = wait;
    let (what, since) = (wanted(*mode), now.since(since));
    format!("{who} has been waiting {what} `{}` {since}: {}", sanitize(key), sanitize(reason))
}

/// An entry that is still to be shown, and its depth.
enum Pending<'a> {
    /// A wait, under the process that was named above it, if any.
    Wait(usize, usize, Option<u32>),
    /// A blocker of the wait above.
    Blocker(&'a BlockerInfo, usize),
    /// The number of further blockers that the report does not name.
    More(u64, usize),
}

/// A blocker. The wait of its own session, if there is one, `follows`, or is shown above.
fn blocker_line(blocker: &BlockerInfo, follows: bool, is_shown: bool, now: &Now) -> String {
    let BlockerInfo { party: who, key, mode, holds, since } = blocker;
    let (who, key, since) = (party(who), sanitize(key), now.since(since));
    let told = if is_shown { ", shown above" } else { "" };
    if *holds {
        return format!("{who} has held `{key}`{} {since}{told}", held(*mode));
    }
    let waiting = format!(": it has been waiting {} `{key}` {since}{told}", wanted(*mode));
    format!("{who} goes first{}", if follows { "" } else { &waiting })
}

pub(super) fn graph(json: bool, target: &Target) -> Result {
    let waits = target.connect()?.graph(&NoParameters {})?;
    stdout::report(&waits, json, || dot(&waits))
}

/// The graph in DOT: a node for each session with its processes that hold or wait, and an edge from
/// each waiter to each of its blockers, in the order of the waits.
fn dot(waits: &Waits) -> String {
    let mut nodes: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for wait in &waits.waits {
        let blockers = wait.blockers.iter().map(|blocker| &blocker.party);
        for party in std::iter::once(&wait.waiter).chain(blockers) {
            nodes.entry(&party.session).or_default().insert(line(party));
        }
    }
    let edges_of = |wait: &WaitInfo| wait.blockers.iter().map(|it| edge(wait, it)).collect_vec();
    let edges = waits.waits.iter().flat_map(edges_of).unique().join("");
    let mut text = "digraph canal {\n  rankdir=LR;\n  node [shape=box];\n".to_owned();
    for (session, processes) in nodes {
        let name = quoted(&sanitize(session));
        let lines: String = processes.iter().map(|line| format!("\\n{}", quoted(line))).collect();
        text += &format!("  \"{name}\" [label=\"{name}{lines}\"];\n");
    }
    text += &edges;
    if waits.left_out > 0 {
        text += &format!("  // {} left out\n", plural(waits.left_out, "more wait", "more waits"));
    }
    text + "}\n"
}

/// `pid 812 make test`.
fn line(party: &PartyInfo) -> String {
    let pid = named(party.pid, party.lease);
    let command = party.command.as_ref().map(|command| format!(" {}", short_command(command)));
    pid + &command.unwrap_or_default()
}

/// Solid to a holder, dashed to a waiter that is ahead in the queue.
fn edge(wait: &WaitInfo, blocker: &BlockerInfo) -> String {
    let node = |session: &str| format!("\"{}\"", quoted(&sanitize(session)));
    let (from, to) = (node(&wait.waiter.session), node(&blocker.party.session));
    let want = |key: &str, of| {
        quoted(&format!("{} {}", by_mode(of, ["slots of", "read", "write"]), sanitize(key)))
    };
    let mut label = want(&wait.key, wait.mode);
    if blocker.key != wait.key {
        label = label + "\\nby " + &want(&blocker.key, blocker.mode);
    }
    let style = if blocker.holds { "" } else { ", style=dashed" };
    format!("  {from} -> {to} [label=\"{label}\"{style}];\n")
}

/// Quotes a text for DOT, where `\` begins an escape and `&` an HTML entity.
fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('&', "&amp;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::wording::holders_and_waiters::tests::someone;
    use crate::cli::wording::time::tests::at;
    use crate::protocol::Mode;

    const SINCE: &str = "2026-11-20T14:02:11Z";

    fn wait(waiter: PartyInfo, (key, mode): (&str, Mode), blockers: Vec<BlockerInfo>) -> WaitInfo {
        let (key, since, reason) = (key.to_owned(), SINCE.to_owned(), "why".to_owned());
        WaitInfo { waiter, key, mode, since, reason, blockers, blockers_left_out: 0 }
    }

    fn blocker(party: PartyInfo, (key, mode): (&str, Mode), holds: bool) -> BlockerInfo {
        BlockerInfo { party, key: key.to_owned(), mode, holds, since: SINCE.to_owned() }
    }

    fn told(waits: Vec<WaitInfo>) -> String {
        story(
            &WhyQuery { pid: Some(9), session: None },
            &Waits { waits, ..Waits::default() },
            &at("2026-11-20T14:05:23Z"),
        )
    }

    #[test]
    fn a_process_that_waits_for_nothing_gets_a_sentence() {
        assert_eq!(told(vec![]), "pid 9 is not waiting for anything\n");
    }

    #[test]
    fn the_chain_is_followed_to_its_end() {
        let (deploy, make) = (someone(9, "deploy", "s9"), someone(10, "make", "s10"));
        let (ld, old) = (someone(11, "ld", "s10"), someone(12, "old", "s12"));
        let first = blocker(someone(13, "dump", "s13"), ("db/x", Mode::Read), false);
        let holds = blocker(make.clone(), ("db/y", Mode::Counted), true);
        let story = told(vec![
            wait(deploy.clone(), ("db", Mode::Write), vec![holds, first]),
            wait(ld, ("link", Mode::Counted), vec![blocker(old, ("link", Mode::Counted), true)]),
            wait(
                someone(13, "dump", "s13"),
                ("db/x", Mode::Read),
                vec![blocker(deploy, ("a", Mode::Write), true)],
            ),
        ]);
        assert_eq!(
            story,
            "pid 9 `deploy` (root, s9) has been waiting to write `db` since 14:02:11 (3m12s): why
  pid 10 `make` (root, s10) has held `db/y` since 14:02:11 (3m12s)
    pid 11 `ld` (root, s10) has been waiting for `link` since 14:02:11 (3m12s): why
      pid 12 `old` (root, s12) has held `link` since 14:02:11 (3m12s)
  pid 13 `dump` (root, s13) goes first
    it has been waiting to read `db/x` since 14:02:11 (3m12s): why
      pid 9 `deploy` (root, s9) has held `a` for writing since 14:02:11 (3m12s), shown above
"
        );
    }

    #[test]
    fn what_waits_for_a_holder_is_listed() {
        let deploy = someone(9, "deploy", "s9");
        let waiters_of = |of: Vec<WaitInfo>| {
            let waits = Waits { waiters: of, ..Waits::default() };
            waiters(&waits, &at("2026-11-20T14:05:23Z"))
        };
        assert_eq!(waiters_of(vec![]), "");
        assert_eq!(
            waiters_of(vec![wait(deploy.clone(), ("db", Mode::Write), vec![])]),
            "1 request is waiting for it:\n  pid 9 `deploy` (root, s9) has been waiting to write `db` since \
             14:02:11 (3m12s): why\n"
        );
        let two = vec![wait(deploy, ("db", Mode::Write), vec![]); 2];
        assert!(waiters_of(two).starts_with("2 requests are waiting for it:\n  pid 9 "));
    }

    #[test]
    fn omitted_waits_are_counted() {
        let key = ("k", Mode::Write);
        let holder = blocker(someone(10, "x", "s10"), key, true);
        let mut wait = wait(someone(9, "x", "s9"), key, vec![holder]);
        wait.blockers_left_out = 1;
        let waits = Waits { waits: vec![wait], left_out: 2, ..Waits::default() };
        let story =
            story(&WhyQuery { pid: Some(9), session: None }, &waits, &at("2026-11-20T14:05:23Z"));
        assert!(story.ends_with("\n  and 1 other\n2 more waits are left out\n"), "{story}");
    }

    #[test]
    fn a_long_chain_is_shown_without_endless_indentation() {
        let one = |n: u32| someone(n, "x", &format!("s{n}"));
        let key = ("k", Mode::Write);
        let chain: Vec<_> =
            (1..20_000).map(|n| wait(one(n), key, vec![blocker(one(n + 1), key, true)])).collect();
        let story = told(chain);
        assert_eq!(story.lines().count(), 2 * 19_999);
        assert!(story.lines().all(|line| line.len() < 200));
    }

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
