//! Describes a deadlock: each waiter of the ring, and what it waits for.

use super::holders_and_waiters::{clause, held, party, party_again, wanted};
use crate::cli::sanitize;
use crate::protocol::{CycleStepInfo, PartyInfo};

/// One line for each process, in the order of the waits. Each line ends where the next one
/// continues:
///
/// ```text
///   pid 812 `./one.sh` (alice, s3) is waiting to write `b`, held for writing by
///   pid 900 `make` (bob, s4), which encloses
///   pid 950 `ld` (bob, s4), which is waiting to write `a`, held for writing by pid 812
/// ```
pub(crate) fn lines(cycle: &[CycleStepInfo]) -> Vec<String> {
    let (Some(first), mut lines) = (cycle.first(), Vec::new()) else { return Vec::new() };
    // Participants of a ring are one process, or one request at nodes, if these are equal.
    let identity = |it: &PartyInfo| (it.pid, it.run, it.session.clone());
    let mut who = party(&first.waiter);
    for (step, next) in cycle.iter().zip(cycle.iter().skip(1).map(Some).chain([None])) {
        let blocker = &step.blocker.party;
        let waiter = next.map_or(&first.waiter, |next| &next.waiter);
        // The ring closes at the first waiter, which has its line already.
        let again =
            |party| next.map_or_else(|| format!(" {}", party_again(party)), |_| String::new());
        let waits = format!("  {who} is waiting {}", obstacle(step));
        if identity(waiter) == identity(blocker) {
            lines.push(waits + &again(blocker));
        } else {
            // A frame ends only after its children's requests are answered.
            let encloses = format!("  {}, which encloses{}", party(blocker), again(waiter));
            lines.extend([waits, encloses]);
        }
        who = format!("{}, which", party(waiter));
    }
    lines
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
    use super::*;
    use crate::cli::wording::holders_and_waiters::tests::someone;
    use crate::protocol::{BlockerInfo, Mode, RunId};

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
            lines(&[
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
            lines(&cycle),
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
            lines(&[first, second, third]),
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
            lines(&[step(inner, "b", two, "b"), step(other, "a", one, "a")]),
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
        assert!(lines(&[]).is_empty());
    }
}
