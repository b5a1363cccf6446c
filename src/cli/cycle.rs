//! A deadlock, in words: who waits for whom, once around.

use super::clean::clean;
use super::who::{held, party, process, wanted};
use crate::protocol::{BlockerShown, CycleStepShown, PartyShown};

/// One line for each session, in the order of the wait; each line but the last ends where the next
/// one goes on:
///
/// ```text
///   pid 812 `./one.sh` (alice, s3) waits to write `b`, held for writing by
///   pid 900 `./two.sh` (bob, s4), which waits to write `a`, held for writing by pid 812
/// ```
pub(crate) fn lines(cycle: &[CycleStepShown]) -> Vec<String> {
    let Some((first, last)) = cycle.first().zip(cycle.last()) else { return Vec::new() };
    let mut lines: Vec<String> = Vec::new();
    // Who holds what the step before waits for.
    let mut before: Option<&BlockerShown> = None;
    for step in cycle {
        let who = match before {
            None => party(&step.waiter),
            Some(before) => whom(&before.party, &step.waiter),
        };
        lines.push(format!("  {who} waits {}", obstacle(step)));
        before = Some(&step.blocker);
    }
    if let Some(line) = lines.last_mut() {
        *line += &format!(" {}", around(&last.blocker.party, &first.waiter));
    }
    lines
}

/// A blocker, and the process that waits on its behalf.
fn whom(blocker: &PartyShown, waiter: &PartyShown) -> String {
    if blocker.pid == waiter.pid {
        return format!("{}, which", party(waiter));
    }
    // A frame ends only after its children's requests are answered.
    format!("{}, within which {}", party(blocker), party(waiter))
}

/// The blocker that closes the ring.
fn around(blocker: &PartyShown, first: &PartyShown) -> String {
    if blocker.pid == first.pid {
        return process(first.pid);
    }
    format!("{}, within which {} waits", party(blocker), process(first.pid))
}

/// `to write `b`, held for writing by`.
fn obstacle(step: &CycleStepShown) -> String {
    let CycleStepShown { key, mode, blocker, .. } = step;
    let what = format!("{} `{}`", wanted(*mode), clean(key));
    let other = clean(&blocker.key);
    match (blocker.holds, blocker.key == *key) {
        (true, true) => format!("{what}, held{} by", held(blocker.mode)),
        (true, false) => format!("{what}, while `{other}` is held{} by", held(blocker.mode)),
        (false, _) => format!("{what}, behind the wait {} `{other}` of", wanted(blocker.mode)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::who::tests::someone;
    use crate::protocol::Mode;

    fn step(waiter: PartyShown, key: &str, holder: PartyShown, of: &str) -> CycleStepShown {
        let since = "2026-11-20T14:02:11Z".to_owned();
        let (mode, holds) = (Mode::Write, true);
        let blocker = BlockerShown { party: holder, key: of.to_owned(), mode, holds, since };
        CycleStepShown { waiter, key: key.to_owned(), mode, blocker }
    }

    #[test]
    fn a_ring_of_two_is_told_once_around() {
        let (one, two) = (someone(812, "./one.sh", "s3"), someone(900, "./two.sh", "s4"));
        let cycle = [step(one.clone(), "b", two.clone(), "b"), step(two, "a", one, "a")];
        assert_eq!(
            lines(&cycle),
            [
                "  pid 812 `./one.sh` (root, s3) waits to write `b`, held for writing by",
                "  pid 900 `./two.sh` (root, s4), which waits to write `a`, held for writing by pid 812",
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
                "  pid 11 `ld` (root, s3) waits for `link`, held by",
                "  pid 20 `job` (root, s4), which waits to read `db/x`, behind the wait to write `db` of",
                "  pid 30 `migrate` (root, s5), which waits to write `db`, while `db/y` is held for writing by pid 10 `make` (root, s3), within which pid 11 waits",
            ]
        );
    }

    #[test]
    fn no_cycle_has_no_lines() {
        assert!(lines(&[]).is_empty());
    }
}
