//! Describes a wait: `waiting for deploy, next in line; held 3m by alice: ./deploy.sh (pid 812)`.
//!
//! A sentence consists of parts, the most important first. If there is too little room, canal
//! leaves out parts from the end.

use std::time::Duration;

use itertools::Itertools as _;

use super::holders_and_waiters::{clause, held, left, ordinal, short_command, wanted};
use crate::cli::output::sanitize::width;
use crate::cli::{Now, cut, plural, sanitize, short, user_name};
use crate::duration::milliseconds;
use crate::protocol::{EstimateInfo, HOLDERS_SHOWN_MAX, HolderInfo, Mode, Progress};

/// The least columns of a text that is cut.
const CUT_COLUMNS_MIN: usize = 8;

/// A wait, from the view of one canal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait<'a> {
    pub(crate) progress: &'a Progress,
    /// How the request wants the key.
    pub(crate) mode: Mode,
    /// How many canals wait on this terminal, including this one.
    pub(crate) here: usize,
    /// How long the request has waited, if the sentence includes that.
    pub(crate) waited: Option<Duration>,
    /// How long ago the daemon reported the progress.
    pub(crate) heard_ago: Duration,
}

/// A part of the sentence: words that appear whole or not at all, and a text that may be cut.
type Part = (String, String);

/// As much of the sentence as fits into `columns`.
pub(crate) fn fitted(wait: &Wait<'_>, columns: Option<usize>, now: &Now) -> String {
    let columns = columns.unwrap_or(usize::MAX);
    let waited = wait.waited.map(|waited| format!(" for {}", short(waited))).unwrap_or_default();
    let start = format!("waiting {} {}{waited}", wanted(wait.mode), sanitize(&wait.progress.key));
    let mut line = cut(&start, columns);
    for (words, text) in parts(wait, now) {
        let Some(room) = columns.checked_sub(width(&line) + width(&words)) else { break };
        let is_whole = width(&text) <= room;
        if is_whole || room >= CUT_COLUMNS_MIN {
            line = line + &words + &cut(&text, room);
        }
        if !is_whole {
            break;
        }
    }
    sanitize(&line)
}

/// `waiting for 3 new nodes (web1, web2, web3): first grant in 1m28s`.
pub(crate) fn new_nodes(names: &[String], left_ms: u64, columns: Option<usize>) -> String {
    let nodes = plural(names.len() as u64, "new node", "new nodes");
    let start = format!("waiting for {nodes} (");
    let left = short(Duration::from_secs(left_ms.div_ceil(1000)));
    let end = format!("): first grant in {left}");
    // The nodes answer in any order.
    let names = names.iter().sorted_unstable().join(", ");
    let room = columns.unwrap_or(usize::MAX).saturating_sub(width(&start) + width(&end));
    sanitize(&format!("{start}{}{end}", cut(&names, room)))
}

/// The parts after the start.
fn parts(wait: &Wait<'_>, now: &Now) -> Vec<Part> {
    let Progress { position, waiting, reason, holders, .. } = wait.progress;
    let mut parts = Vec::new();
    if wait.here > 1 {
        parts.push((format!(" ({} on this terminal)", wait.here), String::new()));
    }
    match (position, waiting) {
        // It is in no queue yet, because its daemon cannot reach its engine.
        (_, 0) => {}
        (1, _) => parts.push((", next in line".to_owned(), String::new())),
        (n, all) => parts.push((format!(", {} of {all} in line", ordinal(*n)), String::new())),
    }
    if let Some(of) = &wait.progress.estimate {
        parts.push((format!(", {}", estimate(of, wait.heard_ago)), String::new()));
    }
    match holders.first() {
        // The daemon names holders only if they are the reason.
        Some(longest) => holder(&mut parts, longest, holders.len(), now),
        None => parts.push(("; ".to_owned(), sanitize(reason))),
    }
    parts
}

/// `; held 3m by alice`, `: ./deploy.sh`, ` (pid 812 on beta, stopped)`, `; note: …`.
fn holder(parts: &mut Vec<Part>, longest: &HolderInfo, holders: usize, now: &Now) {
    // The daemon sends the key only if it differs from the key of the request.
    let key = longest.key.as_ref().map(|key| sanitize(key) + " ").unwrap_or_default();
    let held = held(longest.mode.unwrap_or(Mode::Counted));
    let many = match holders {
        0 | 1 => String::new(),
        HOLDERS_SHOWN_MAX.. => format!(" by {HOLDERS_SHOWN_MAX} or more, longest"),
        several => format!(" by {several}, longest"),
    };
    let (age, user) = (now.about(&longest.since), user_name::name(longest.uid));
    parts.push((format!("; {key}held{held}{many} {age} by {user}"), String::new()));
    if let Some(command) = longest.command.as_deref().filter(|command| !command.is_empty()) {
        parts.push((": ".to_owned(), short_command(command)));
    }
    let details = details(longest);
    if !details.is_empty() {
        parts.push((format!(" ({details})"), String::new()));
    }
    if let Some(note) = &longest.note {
        parts.push(("; note: ".to_owned(), sanitize(note)));
    }
}

/// `pid 812 on beta, stopped`; `a lease, 42s left`.
fn details(holder: &HolderInfo) -> String {
    let name = match (&holder.lease, holder.pid) {
        (Some(_), _) => "a lease".to_owned(),
        // A process of another pid namespace has no pid here.
        (None, 0) => String::new(),
        (None, pid) => format!("pid {pid}"),
    };
    let host = clause(" on ", holder.host.as_deref());
    let left = left(holder.lease.as_ref());
    let halted = holder.state.as_deref().filter(|state| matches!(*state, "stopped" | "frozen"));
    let halted = clause(", ", halted);
    format!("{name}{host}{left}{halted}").trim_start_matches([',', ' ']).to_owned()
}

/// An estimate that was made `ago`, as text.
pub(crate) fn estimate(of: &EstimateInfo, ago: Duration) -> String {
    let ago = milliseconds(ago);
    let left = |ms: u64| ms.saturating_sub(ago);
    let (low, median, high) = (left(of.low_ms), left(of.median_ms), left(of.high_ms));
    if ago > of.high_ms {
        return "longer than usual".to_owned();
    }
    let (unit, name) = match high {
        0..100_000 => (1_000, "s"),
        100_000..6_000_000 => (60_000, "min"),
        6_000_000..172_800_000 => (3_600_000, "h"),
        _ => (86_400_000, "d"),
    };
    let rounded = |ms: u64| (ms + unit / 2) / unit;
    // The upper bound is rounded up, so that the text never claims less.
    let (low, median, high) = (rounded(low), rounded(median), high.div_ceil(unit).max(1));
    match median {
        0 if high == 1 => format!("usually under 1 {name} more"),
        0 => format!("usually under 1 {name} more (up to {high})"),
        _ if low == high => format!("usually {median} {name} more"),
        _ => format!("usually {median} {name} more ({low}–{high})"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cli::wording::holders_and_waiters::tests::somebody;
    use crate::cli::wording::time::tests::at;

    const SINCE: &str = "2026-11-20T14:02:11Z";

    #[test]
    fn new_nodes_are_all_named_with_the_time_of_the_first_grant() {
        let names = ["web1", "web2", "web3"].map(str::to_owned);
        let line = "waiting for 3 new nodes (web1, web2, web3): first grant in 1m28s";
        assert_eq!(new_nodes(&names, 87_001, None), line);
        assert_eq!(new_nodes(&names, 87_001, Some(line.len())), line);
        let one = "waiting for 1 new node (web1): first grant in 0s";
        assert_eq!(new_nodes(&names[..1], 0, None), one);
        let narrow = new_nodes(&names, 59_000, Some(50));
        assert!(width(&narrow) <= 50 && narrow.ends_with("): first grant in 59s"), "{narrow}");
    }

    fn now() -> Now {
        at("2026-11-20T14:05:23Z")
    }

    /// The second of four waiters for a key with this many holders.
    pub(crate) fn progress(holders: usize) -> Progress {
        Progress {
            key: "deploy".to_owned(),
            position: 2,
            waiting: 4,
            session: None,
            reason: "2 of 2 slots held".to_owned(),
            holders: (0..holders).map(|_| somebody(812, Some("./deploy.sh"), SINCE)).collect(),
            estimate: None,
        }
    }

    fn next() -> Progress {
        Progress { position: 1, ..progress(1) }
    }

    fn wait(progress: &Progress) -> Wait<'_> {
        Wait { progress, mode: Mode::Counted, here: 1, waited: None, heard_ago: Duration::ZERO }
    }

    fn whole(progress: &Progress) -> String {
        fitted(&wait(progress), None, &now())
    }

    #[test]
    fn a_person_reads_first_what_a_person_wants_first() {
        assert_eq!(
            whole(&next()),
            "waiting for deploy, next in line; held 3m by root: ./deploy.sh (pid 812)"
        );
        let many = "waiting for deploy, 2nd of 4 in line; held by 2, longest 3m by root";
        assert!(whole(&progress(2)).starts_with(many));
        let most = "waiting for deploy, 2nd of 4 in line; held by 5 or more, longest 3m by root: ";
        assert!(whole(&progress(5)).starts_with(most));
        assert_eq!(whole(&progress(0)), "waiting for deploy, 2nd of 4 in line; 2 of 2 slots held");
        let reason = "etcd cannot be reached".to_owned();
        let away = Progress { waiting: 0, position: 0, reason, ..progress(0) };
        assert_eq!(whole(&away), "waiting for deploy; etcd cannot be reached");
    }

    #[test]
    fn an_estimate_follows_the_place_in_line_and_counts_down() {
        let of = EstimateInfo { low_ms: 120_000, median_ms: 240_000, high_ms: 540_000 };
        let progress = Progress { estimate: Some(of), ..next() };
        let start = "waiting for deploy, next in line, usually 4 min more (2–9); held 3m by root";
        assert!(whole(&progress).starts_with(start), "{}", whole(&progress));
        let later = Wait { heard_ago: Duration::from_secs(600), ..wait(&progress) };
        let line = fitted(&later, None, &now());
        assert!(
            line.starts_with("waiting for deploy, next in line, longer than usual; "),
            "{line}"
        );
    }

    #[test]
    fn the_holder_is_described_as_far_as_it_can_be_seen() {
        let with = |change: &dyn Fn(&mut HolderInfo)| {
            let mut progress = next();
            change(&mut progress.holders[0]);
            whole(&progress).split_once("; ").unwrap().1.to_owned()
        };
        assert_eq!(with(&|one| one.command = None), "held 3m by root (pid 812)");
        assert_eq!(
            with(&|one| (one.host, one.state) = (Some("beta".into()), Some("stopped".into()))),
            "held 3m by root: ./deploy.sh (pid 812 on beta, stopped)"
        );
        assert_eq!(with(&|one| one.pid = 0), "held 3m by root: ./deploy.sh");
        assert_eq!(
            with(&|one| (one.key, one.mode) = (Some("deploy/x".into()), Some(Mode::Write))),
            "deploy/x held for writing 3m by root: ./deploy.sh (pid 812)"
        );
        assert_eq!(
            with(&|one| one.note = Some("https://ci/7\x1b".into())),
            "held 3m by root: ./deploy.sh (pid 812); note: https://ci/7?"
        );
    }

    #[test]
    fn a_log_line_says_how_long() {
        let progress = next();
        let waited = Some(Duration::from_secs(40));
        let line = fitted(&Wait { waited, mode: Mode::Write, ..wait(&progress) }, None, &now());
        assert!(
            line.starts_with("waiting to write deploy for 40s, next in line; held 3m"),
            "{line}"
        );
    }

    #[test]
    fn parts_are_left_out_from_the_end() {
        let progress = next();
        let four = Wait { here: 4, ..wait(&progress) };
        for (columns, line) in [
            (
                99,
                "waiting for deploy (4 on this terminal), next in line; held 3m by root: \
                 ./deploy.sh (pid 812)",
            ),
            (
                91,
                "waiting for deploy (4 on this terminal), next in line; held 3m by root: \
                 ./deploy.sh",
            ),
            (
                81,
                "waiting for deploy (4 on this terminal), next in line; held 3m by root: ./deploy…",
            ),
            (78, "waiting for deploy (4 on this terminal), next in line; held 3m by root"),
            (69, "waiting for deploy (4 on this terminal), next in line"),
            (51, "waiting for deploy (4 on this terminal)"),
            (38, "waiting for deploy"),
            (12, "waiting for…"),
        ] {
            assert_eq!(fitted(&four, Some(columns), &now()), line, "{columns}");
        }
    }

    proptest! {
        #[test]
        fn every_width_is_kept_whatever_the_texts(
            columns in 0..200_usize,
            texts in proptest::collection::vec("[a-z#漢é🦀\u{301}\u{fe0f} /]{0,60}", 4),
            holders in 0..7_usize,
            here in 0..2000_usize,
        ) {
            let mut progress = progress(holders);
            progress.key = texts[0].clone();
            progress.reason = texts[1].clone();
            if let Some(one) = progress.holders.first_mut() {
                one.command = Some(texts[2].clone());
                one.note = Some(texts[3].clone());
            }
            let line = fitted(&Wait { here, ..wait(&progress) }, Some(columns), &now());
            prop_assert!(width(&line) <= columns, "{line:?}");
            // The result is a prefix of the whole sentence.
            let all = fitted(&Wait { here, ..wait(&progress) }, None, &now());
            prop_assert!(all.starts_with(line.trim_end_matches('…')), "{line:?} of {all:?}");
        }
    }

    fn said(seconds: [u64; 3], ago: u64) -> String {
        let [low_ms, median_ms, high_ms] = seconds.map(|it| it * 1_000);
        estimate(&EstimateInfo { low_ms, median_ms, high_ms }, Duration::from_secs(ago))
    }

    #[test]
    fn one_unit_is_enough() {
        for (seconds, text) in [
            ([120, 240, 540], "usually 4 min more (2–9)"),
            ([3, 12, 90], "usually 12 s more (3–90)"),
            ([60, 80, 101], "usually 1 min more (1–2)"),
            ([120, 120, 120], "usually 2 min more"),
            ([0, 10, 200], "usually under 1 min more (up to 4)"),
            ([0, 0, 1], "usually under 1 s more"),
            ([0, 0, 0], "usually under 1 s more"),
            ([3_600, 7_200, 14_000], "usually 2 h more (1–4)"),
            ([86_400, 172_800, 300_000], "usually 2 d more (1–4)"),
        ] {
            assert_eq!(said(seconds, 0), text);
        }
    }

    #[test]
    fn time_that_passed_is_taken_off() {
        assert_eq!(said([120, 240, 540], 120), "usually 2 min more (0–7)");
        assert_eq!(said([120, 240, 540], 500), "usually under 1 s more (up to 40)");
        assert_eq!(said([120, 240, 540], 541), "longer than usual");
    }
}
