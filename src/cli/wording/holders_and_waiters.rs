//! Describes holders, waiters and queue positions.

use std::time::Duration;

use itertools::Itertools as _;

use crate::cli::{Now, command_line, cut, plural, sanitize, short, user_name};
use crate::protocol::{HolderInfo, LeaseInfo, Mode, OverNodesInfo, PartyInfo, RunId};

/// The most columns of a command within a sentence.
const COMMAND_COLUMNS: usize = 40;

/// `pid 812 `make test` (alice, for 3m12s)`. For a hold of another key, above or below the key of
/// the request: `(alice, db/x for 3m12s)`. The note follows, if there is one.
pub(crate) fn holder(holder: &HolderInfo, now: &Now) -> String {
    let HolderInfo { pid, uid, since, lease, .. } = holder;
    let command = holder.command.as_deref().filter(|command| !command.is_empty());
    let shown = shown(*pid, lease.is_some(), command);
    let user = user_name::name(*uid);
    let host = clause(" on ", holder.host.as_deref());
    // The daemon sends the key only if it differs from the key of the request.
    let key = holder.key.as_ref().map(|key| format!("{} ", sanitize(key))).unwrap_or_default();
    let (age, left) = (now.age(since), left(lease.as_ref()));
    let over = holder.over_nodes.as_deref().map(|over| format!(", {}", over_nodes(over)));
    let over = over.unwrap_or_default();
    let note = clause(", note: ", holder.note.as_deref());
    format!("{shown} ({user}{host}, {key}for {age}{left}{over}){note}")
}

/// `on 2 of 3 nodes, waiting for web3`; `on 3 nodes, of which 2 are needed` if its client did not
/// report.
pub(crate) fn over_nodes(over: &OverNodesInfo) -> String {
    let all = over.nodes.len();
    let Some(held) = over.held else {
        let needed = plural(over.need, "is", "are");
        return format!("on {all} nodes, of which {needed} needed");
    };
    let names = over.waits_for.iter().map(|name| sanitize(name)).join(", ");
    let waits = if names.is_empty() { "" } else { ", waiting for " };
    format!("on {held} of {all} nodes{waits}{names}")
}

/// `, 42s left` of a lease; nothing without one.
pub(crate) fn left(lease: Option<&LeaseInfo>) -> String {
    let left = lease.and_then(|lease| lease.left_ms).map(Duration::from_millis);
    left.map(|left| format!(", {} left", short(left))).unwrap_or_default()
}

/// `, in /srv/app`: a text of another process, after these words; nothing without a text.
pub(crate) fn clause(words: &str, text: Option<&str>) -> String {
    text.map(|text| format!("{words}{}", sanitize(text))).unwrap_or_default()
}

/// A command line that is short enough for a sentence.
pub(crate) fn short_command(command: &str) -> String {
    cut(&command_line(command), COMMAND_COLUMNS)
}

/// `pid 812 `make test``, `a lease requested by `./ci.sh``.
fn shown(pid: u32, lease: bool, command: Option<&str>) -> String {
    let by = if lease { " requested by" } else { "" };
    let command = command.map(|command| format!("{by} `{}`", short_command(command)));
    named(pid, lease) + &command.unwrap_or_default()
}

/// `pid 812`, `a lease`.
pub(crate) fn named(pid: u32, lease: bool) -> String {
    if lease { "a lease".to_owned() } else { process(pid) }
}

/// `pid 812`, or a phrase for a process that has no pid here.
pub(crate) fn process(pid: u32) -> String {
    match pid {
        0 => "a process in another pid namespace".to_owned(),
        pid => format!("pid {pid}"),
    }
}

/// How many digits of the name of a run at nodes are shown.
const RUN_DIGITS: usize = 8;

/// `pid 812 `make test` (alice, s17)`: a process with its user and session; for a request at nodes,
/// `` `./deploy.sh` (alice, run 3f00a1b2)``.
pub(crate) fn party(party: &PartyInfo) -> String {
    let PartyInfo { pid, uid, command, session, lease, run } = party;
    let (user, command) = (user_name::name(*uid), command.as_deref());
    match (run.map(run_name), command.map(short_command)) {
        (None, _) => format!("{} ({user}, {})", shown(*pid, *lease, command), sanitize(session)),
        (Some(run), Some(command)) => format!("`{command}` ({user}, {run})"),
        (Some(run), None) => format!("{run} ({user})"),
    }
}

/// A process, or a request at nodes, that was shown before.
pub(crate) fn party_again(party: &PartyInfo) -> String {
    party.run.map_or_else(|| named(party.pid, party.lease), run_name)
}

/// `run 3f00a1b2`.
fn run_name(run: RunId) -> String {
    format!("run {:.RUN_DIGITS$}", run.to_string())
}

/// The words for slots, for reading or for writing.
pub(crate) fn by_mode(mode: Mode, [counted, read, write]: [&'static str; 3]) -> &'static str {
    match mode {
        Mode::Counted => counted,
        Mode::Read => read,
        Mode::Write => write,
    }
}

/// How a request wants a key, after `waits`: `for`, `to read`, `to write`.
pub(crate) fn wanted(mode: Mode) -> &'static str {
    by_mode(mode, ["for", "to read", "to write"])
}

/// How a key is held, after `held`: nothing, ` for reading`, ` for writing`.
pub(crate) fn held(mode: Mode) -> &'static str {
    by_mode(mode, ["", " for reading", " for writing"])
}

/// `1st`, `2nd`, `11th`.
pub(crate) fn ordinal(n: u64) -> String {
    let end = match (n % 100, n % 10) {
        (11..=13, _) | (_, 0 | 4..) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
    };
    format!("{n}{end}")
}

/// Slot numbers: `0-3,7`.
pub(crate) fn slots(slots: &[u64]) -> String {
    let each = slots.iter().map(|slot| (*slot, *slot));
    canal_text::ranges(each.coalesce(|one, next| match one.1.checked_add(1) == Some(next.0) {
        true => Ok((one.0, next.1)),
        false => Err((one, next)),
    }))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cli::wording::time::tests::at;
    use crate::protocol::{NodeId, Require};

    /// A holder for tests.
    pub(crate) fn somebody(pid: u32, command: Option<&str>, since: &str) -> HolderInfo {
        HolderInfo {
            pid,
            command: command.map(str::to_owned),
            since: since.to_owned(),
            token: 77,
            slots: vec![0],
            session: "s1".to_owned(),
            ..HolderInfo::default()
        }
    }

    /// A holder or waiter, for tests.
    pub(crate) fn someone(pid: u32, command: &str, session: &str) -> PartyInfo {
        let command = Some(command.to_owned());
        PartyInfo { pid, uid: 0, command, session: session.to_owned(), lease: false, run: None }
    }

    #[test]
    fn a_party_is_named_with_its_session() {
        let mut one = someone(812, "make\n\x1b test", "s17");
        assert_eq!(party(&one), "pid 812 `make ? test` (root, s17)");
        one.command = None;
        assert_eq!(party(&one), "pid 812 (root, s17)");
    }

    #[test]
    fn a_holder_is_a_clause() {
        let now = at("2026-11-20T14:05:23Z");
        let since = "2026-11-20T14:02:11Z";
        assert_eq!(
            holder(&somebody(812, Some("make test"), since), &now),
            "pid 812 `make test` (root, for 3m12s)"
        );
        assert_eq!(holder(&somebody(812, None, since), &now), "pid 812 (root, for 3m12s)");
        let note = Some("https://ci/7".to_owned());
        let noted = HolderInfo { note, ..somebody(812, None, since) };
        assert_eq!(holder(&noted, &now), "pid 812 (root, for 3m12s), note: https://ci/7");
        let below = HolderInfo { key: Some("db/x".to_owned()), ..somebody(812, None, since) };
        assert_eq!(holder(&below, &now), "pid 812 (root, db/x for 3m12s)");
        let long = holder(&somebody(812, Some(&"x\x1b".repeat(100)), since), &now);
        assert!(long.contains("x?x?") && long.contains('…') && !long.contains('\x1b'), "{long}");
    }

    #[test]
    fn ordinals_know_the_teens() {
        let shown: Vec<_> = [1, 2, 3, 4, 11, 12, 13, 21, 111, 112, 1003].map(ordinal).into();
        assert_eq!(
            shown,
            [
                "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "111th", "112th",
                "1003rd"
            ]
        );
    }

    #[test]
    fn slots_are_shown_as_ranges() {
        assert_eq!(slots(&[]), "");
        assert_eq!(slots(&[0]), "0");
        assert_eq!(slots(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(slots(&[u64::MAX]), u64::MAX.to_string());
    }

    #[test]
    fn a_request_over_nodes_says_how_far_the_whole_of_it_is() {
        for (need, held, waits_for, said) in [
            (2, None, &[][..], "on 3 nodes, of which 2 are needed"),
            (1, None, &[], "on 3 nodes, of which 1 is needed"),
            (2, Some(1), &["web3", "w\u{1b}b2"], "on 1 of 3 nodes, waiting for web3, w?b2"),
            (2, Some(3), &[], "on 3 of 3 nodes"),
        ] {
            let over = OverNodesInfo {
                run: RunId(1),
                nodes: (1..=3).map(NodeId).collect(),
                require: Require::Majority,
                need,
                held,
                waits_for: waits_for.iter().map(|name| (*name).to_owned()).collect(),
                collecting: true,
                spare: false,
            };
            assert_eq!(over_nodes(&over), said);
            let since = "2026-11-20T14:03:11.123Z";
            let shown = HolderInfo { over_nodes: Some(over.into()), ..somebody(812, None, since) };
            assert!(holder(&shown, &at(since)).contains(said));
        }
    }
}
