//! Prints a refusal with the present holders, or with the ring of a deadlock, and chooses its exit
//! code.

use serde::Serialize;

use crate::cli::arguments::request::WaitArgs;
use crate::cli::{Failed, Now, Verbosity, sanitize};
use crate::protocol::{
    BlockerInfo, CycleStepInfo, Failure, HOLDERS_SHOWN_MAX, HolderInfo, PartyInfo, SizeNote,
};
use crate::run::OwnCode;

use super::participant::{clause, held, holder, party, party_again, wanted};

/// Advice on a deadlock, unless the daemon has better advice.
pub(crate) const AGAIN: &str = "rerun the command from the point where it took its first lock; to \
                                avoid deadlocks, take all locks in one request";

/// Advice if there may be more holders than a refusal names.
const ALL_HOLDERS: &str = "run `canal status` to see all holders; these have held the lock longest";

/// The `--json` output for a refusal.
#[derive(Debug, Serialize)]
pub(crate) struct Refused<'a> {
    refused: &'a str,
    message: &'a str,
    holders: &'a [HolderInfo],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    cycle: &'a [CycleStepInfo],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    notes: &'a [SizeNote],
}

impl<'a> Refused<'a> {
    /// `notes` describe how canal read the keys.
    pub(crate) fn new(failure: &'a Failure, notes: &'a [SizeNote]) -> Self {
        let Failure { message, holders, cycle, .. } = failure;
        let refused = failure.reason.as_deref().unwrap_or("full");
        Self { refused, message, holders, cycle, notes }
    }
}

/// Prints why canal acquired nothing, and the holders; returns the exit code. `-E` applies only to
/// a busy or paused lock, a wait that is over, too many waiters, and a newer request. `-E 0` prints
/// nothing, which suits cron. `-q` hides that a lock was not free, because the exit code shows
/// that, but never hides a deadlock.
pub(crate) fn explain(failure: &Failure, wait: &WaitArgs, verbosity: Verbosity) -> Failed {
    let code = code(failure, wait);
    if code != 0 && (verbosity > Verbosity::Quiet || is_deadlock(failure)) {
        for line in lines(failure, &Now::here()) {
            verbosity.message(&line);
        }
        match &failure.hint {
            Some(hint) => verbosity.hint(hint),
            None if !failure.cycle.is_empty() => verbosity.hint(AGAIN),
            // A refusal names at most this many.
            None if failure.holders.len() >= HOLDERS_SHOWN_MAX => verbosity.hint(ALL_HOLDERS),
            None => {}
        }
    }
    Failed::silent(code)
}

fn code(failure: &Failure, wait: &WaitArgs) -> u8 {
    match failure.reason.as_deref() {
        Some("full" | "timeout" | "paused" | "max-waiting" | "superseded") => wait.conflict_code(),
        _ => OwnCode::NotAcquired.number(),
    }
}

fn is_deadlock(failure: &Failure) -> bool {
    failure.reason.as_deref() == Some("deadlock")
}

fn lines(failure: &Failure, now: &Now) -> Vec<String> {
    let holders = failure.holders.iter().map(|one| format!("held by {}", holder(one, now)));
    let message = std::iter::once(failure.message.clone()).chain(holders);
    message.chain(deadlock(&failure.cycle)).collect()
}

/// One line for each process, in the order of the waits. Each line ends where the next one
/// continues:
///
/// ```text
///   pid 812 `./one.sh` (alice, s3) is waiting to write `b`, held for writing by
///   pid 900 `make` (bob, s4), which encloses
///   pid 950 `ld` (bob, s4), which is waiting to write `a`, held for writing by pid 812
/// ```
fn deadlock(cycle: &[CycleStepInfo]) -> Vec<String> {
    let (Some(first), mut lines) = (cycle.first(), Vec::new()) else { return Vec::new() };
    let mut who = party(&first.waiter);
    for (step, next) in cycle.iter().zip(cycle.iter().skip(1).map(Some).chain([None])) {
        let waits = format!("  {who} is waiting {}", obstacle(step));
        let CycleStepInfo { blocker: BlockerInfo { party: blocker, .. }, .. } = step;
        match next.map(|next| &next.waiter) {
            Some(waiter) => {
                lines.push(waits);
                // A frame ends only after its children's requests are answered.
                if !is_same(waiter, blocker) {
                    lines.push(format!("  {}, which encloses", party(blocker)));
                }
                who = format!("{}, which", party(waiter));
            }
            None if is_same(&first.waiter, blocker) => {
                lines.push(format!("{waits} {}", party_again(blocker)));
            }
            None => {
                lines.push(waits);
                let within = party_again(&first.waiter);
                lines.push(format!("  {}, which encloses {within}", party(blocker)));
            }
        }
    }
    lines
}

/// Whether two participants of a ring are one process, or one request at nodes.
fn is_same(one: &PartyInfo, other: &PartyInfo) -> bool {
    (one.pid, one.run, &one.session) == (other.pid, other.run, &other.session)
}

/// `to write `b`, held for writing by`; on nodes, `to write `b` on web1, held for writing by`.
fn obstacle(step: &CycleStepInfo) -> String {
    let CycleStepInfo { key, mode, blocker, node, .. } = step;
    let at = clause(" on ", node.as_deref());
    let what = format!("{} `{}`{at}", wanted(*mode), sanitize(key));
    let other = sanitize(&blocker.key);
    match (blocker.holds, blocker.key == *key) {
        (true, true) => format!("{what}, held{} by", held(blocker.mode)),
        (true, false) => format!("{what}, but `{other}` is held{} by", held(blocker.mode)),
        (false, _) => format!("{what}, behind a request {} `{other}` by", wanted(blocker.mode)),
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::wording::participant::tests::{somebody, someone};
    use crate::cli::wording::time::tests::at;
    use crate::protocol::{BlockerInfo, CycleStepInfo, ErrorName, Mode, PartyInfo, RunId};

    use super::*;

    fn refusal(reason: &str) -> Failure {
        Failure {
            reason: Some(reason.into()),
            holders: [somebody(812, Some("make test"), "2026-11-20T14:02:11Z")].into(),
            ..Failure::new(ErrorName::Refused, "db is full")
        }
    }

    #[test]
    fn the_conflict_code_is_for_busy_and_wait_over_and_never_for_a_deadlock() {
        let wait = WaitArgs { conflict_exit_code: Some(3), ..WaitArgs::default() };
        let reasons = ["full", "timeout", "paused", "max-waiting", "superseded", "deadlock"];
        assert_eq!(reasons.map(|reason| code(&refusal(reason), &wait)), [3, 3, 3, 3, 3, 75]);
        assert_eq!(code(&refusal("full"), &WaitArgs::default()), 75);
    }

    #[test]
    fn a_deadlock_is_described_after_its_message() {
        let (one, two) = (someone(812, "./one.sh", "s3"), someone(900, "./two.sh", "s4"));
        let step = |waiter: &PartyInfo, key: &str, blocker: &PartyInfo| CycleStepInfo {
            waiter: waiter.clone(),
            key: key.to_owned(),
            mode: Mode::Write,
            blocker: BlockerInfo {
                party: blocker.clone(),
                key: key.to_owned(),
                mode: Mode::Write,
                holds: true,
                since: "2026-11-20T14:02:11Z".to_owned(),
            },
            node: None,
        };
        let failure = Failure {
            holders: Box::default(),
            cycle: [step(&one, "b", &two), step(&two, "a", &one)].into(),
            ..refusal("deadlock")
        };
        let lines = lines(&failure, &at("2026-11-20T14:05:23Z"));
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[1].ends_with("is waiting to write `b`, held for writing by"), "{lines:?}");
        assert!(lines[2].ends_with("held for writing by pid 812"), "{lines:?}");
    }

    #[test]
    fn a_refusal_names_the_holder_and_since_when() {
        assert_eq!(
            lines(&refusal("full"), &at("2026-11-20T14:05:23Z")),
            ["db is full", "held by pid 812 `make test` (root, for 3m12s)"]
        );
    }

    fn step(waiter: PartyInfo, key: &str, holder: PartyInfo, of: &str) -> CycleStepInfo {
        let since = "2026-11-20T14:02:11Z".to_owned();
        let (mode, holds) = (Mode::Write, true);
        let blocker = BlockerInfo { party: holder, key: of.to_owned(), mode, holds, since };
        CycleStepInfo { waiter, key: key.to_owned(), mode, blocker, node: None }
    }

    #[test]
    fn over_nodes_each_wait_names_its_node_and_runs_are_told_by_their_names() {
        let run = |number: u128, command: &str| PartyInfo {
            run: Some(RunId(number << 96)),
            lease: true,
            ..someone(0, command, &format!("s{number}"))
        };
        let at =
            |node: &str, step: CycleStepInfo| CycleStepInfo { node: Some(node.into()), ..step };
        let (one, inner) = (run(0xaaaa_0001, "./one.sh"), run(0xaaaa_0002, "x"));
        let (two, other) = (run(0xbbbb_0001, "./two.sh"), someone(21, "y", "s4"));
        assert_eq!(
            deadlock(&[
                at("web2", step(inner, "b", two, "b")),
                at("web1", step(other, "a", one, "a"))
            ]),
            [
                "  `x` (root, run aaaa0002) is waiting to write `b` on web2, held for writing by",
                "  `./two.sh` (root, run bbbb0001), which encloses",
                "  pid 21 `y` (root, s4), which is waiting to write `a` on web1, held for writing \
                 by",
                "  `./one.sh` (root, run aaaa0001), which encloses run aaaa0002",
            ]
        );
    }

    #[test]
    fn a_cycle_of_two_is_described_once_around() {
        let (one, two) = (someone(812, "./one.sh", "s3"), someone(900, "./two.sh", "s4"));
        let cycle = [step(one.clone(), "b", two.clone(), "b"), step(two, "a", one, "a")];
        assert_eq!(
            deadlock(&cycle),
            [
                "  pid 812 `./one.sh` (root, s3) is waiting to write `b`, held for writing by",
                "  pid 900 `./two.sh` (root, s4), which is waiting to write `a`, held for writing \
                 by pid 812",
            ]
        );
    }

    #[test]
    fn nested_processes_keys_above_and_queues_are_named() {
        let (make, ld) = (someone(10, "make", "s3"), someone(11, "ld", "s3"));
        let (job, queue) = (someone(20, "job", "s4"), someone(30, "migrate", "s5"));
        let mut first = step(ld, "link", job.clone(), "link");
        (first.mode, first.blocker.mode) = (Mode::Counted, Mode::Counted);
        let mut second = step(job, "db/x", queue.clone(), "db");
        (second.mode, second.blocker.holds) = (Mode::Read, false);
        let third = step(queue, "db", make, "db/y");
        assert_eq!(
            deadlock(&[first, second, third]),
            [
                "  pid 11 `ld` (root, s3) is waiting for `link`, held by",
                "  pid 20 `job` (root, s4), which is waiting to read `db/x`, behind a request to \
                 write `db` by",
                "  pid 30 `migrate` (root, s5), which is waiting to write `db`, but `db/y` is \
                 held for writing by",
                "  pid 10 `make` (root, s3), which encloses pid 11",
            ]
        );
    }

    #[test]
    fn two_nested_scripts_are_described_with_their_commands() {
        let (one, inner) = (someone(10, "one", "s3"), someone(11, "inner one", "s3"));
        let (two, other) = (someone(20, "two", "s4"), someone(21, "inner two", "s4"));
        assert_eq!(
            deadlock(&[step(inner, "b", two, "b"), step(other, "a", one, "a")]),
            [
                "  pid 11 `inner one` (root, s3) is waiting to write `b`, held for writing by",
                "  pid 20 `two` (root, s4), which encloses",
                "  pid 21 `inner two` (root, s4), which is waiting to write `a`, held for writing \
                 by",
                "  pid 10 `one` (root, s3), which encloses pid 11",
            ]
        );
    }

    #[test]
    fn no_cycle_has_no_lines() {
        assert!(deadlock(&[]).is_empty());
    }
}
