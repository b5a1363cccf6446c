//! Prints a refusal, and chooses its exit code.

use serde::Serialize;

use crate::cli::arguments::request::WaitArgs;
use crate::cli::{Failed, Now, Verbosity, stderr, stdout};
use crate::protocol::{CycleStepInfo, Failure, HOLDERS_SHOWN_MAX, HolderInfo, SizeNote};
use crate::run::OwnCode;

use super::deadlock;
use super::holders_and_waiters::holder;

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
pub(crate) fn explain(failure: &Failure, wait: &WaitArgs) -> Failed {
    let code = code(failure, wait);
    let is_deadlock = failure.reason.as_deref() == Some("deadlock");
    if code != 0 && (stderr::shows(Verbosity::Normal) || is_deadlock) {
        lines(failure, &Now::here()).iter().for_each(|line| stderr::message(line));
        match &failure.hint {
            Some(hint) => stderr::hint(hint),
            None if !failure.cycle.is_empty() => stderr::hint(AGAIN),
            // A refusal names at most this many.
            None if failure.holders.len() >= HOLDERS_SHOWN_MAX => stderr::hint(ALL_HOLDERS),
            None => {}
        }
    }
    Failed::silent(code)
}

/// Like [`explain`], and prints the refusal as JSON, too, if the user asked for that.
pub(crate) fn report(failure: &Failure, wait: &WaitArgs, as_json: bool) -> Failed {
    let failed = explain(failure, wait);
    let printed = stdout::json_if(as_json, &Refused::new(failure, failure.notes()));
    printed.err().unwrap_or(failed)
}

fn code(failure: &Failure, wait: &WaitArgs) -> u8 {
    match (failure.reason.as_deref(), wait.conflict_exit_code) {
        // Not for a deadlock, which a script must not take for work that is done elsewhere.
        (Some("full" | "timeout" | "paused" | "max-waiting" | "superseded"), Some(code)) => code,
        _ => OwnCode::NotAcquired.number(),
    }
}

fn lines(failure: &Failure, now: &Now) -> Vec<String> {
    let holders = failure.holders.iter().map(|one| format!("held by {}", holder(one, now)));
    let message = std::iter::once(failure.message.clone()).chain(holders);
    message.chain(deadlock::lines(&failure.cycle)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::wording::holders_and_waiters::tests::{somebody, someone};
    use crate::cli::wording::time::tests::at;
    use crate::protocol::{BlockerInfo, CycleStepInfo, ErrorName, Mode, PartyInfo};

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
}
