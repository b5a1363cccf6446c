//! Describes a lost lock or lease: what was lost, when and why, and the present holder; and a lease
//! over nodes, some of whose nodes do not answer or no longer hold it.

use std::iter::once;
use std::time::Duration;

use itertools::Itertools as _;
use serde::Serialize;

use crate::cli::{Failed, Now, Result, short, stderr, stdout};
use crate::client::hold_monitor::LostHold;
use crate::client::nodes::lease::LeaseHandle;
use crate::protocol::{Failure, HolderInfo, LostLease, OnLost, ReleasedHold};
use crate::run::OwnCode;
use crate::run::nodes::{LOST_HINT, PartAnswer, PartSaid, PartTrouble};
use crate::sys::deadline_page::Why;

use super::holders_and_waiters::holder;
use super::time::clock_of;

/// Advice about a process that canal cannot signal.
pub(crate) const REFUSED_HINT: &str = "run canal as the same user or as root so that it can end \
                                       the command; for now, canal waits for the command to end";

/// The failure of a command that did not start because its lock was already lost.
pub(crate) fn not_begun(lost: &LostHold, keys: &[&str]) -> Failed {
    Failed::with_code(OwnCode::LockLost.number(), of_hold(lost, keys)).hint(LOST_HINT)
}

/// Describes what was lost, when and why, and the consequence.
pub(crate) fn of_hold(lost: &LostHold, keys: &[&str]) -> String {
    hold_sentence(lost, keys, &clock_of(lost.at))
}

/// `lost `db` (token 77) at 14:02:11: canal last reached etcd 45s earlier; canal ends the command`.
fn hold_sentence(lost: &LostHold, keys: &[&str], at: &str) -> String {
    let keys = keys.iter().map(|key| format!("`{key}`")).join(", ");
    let LostHold { token, engine, host, .. } = lost;
    let silence = short(Duration::from_millis(lost.at.saturating_sub(lost.reached_at)));
    let reached = format!("canal last reached {engine} {silence} earlier");
    let why = match lost.why {
        Why::Away => reached,
        Why::Gone => format!("this host ({host}) was declared gone; {reached}"),
        Why::Rewritten => {
            format!("the history of {engine} changed (after a fail-over or a restore from backup)")
        }
        Why::Taken => format!("another daemon is writing to {engine} as this host ({host})"),
        Why::Fewer => format!("too few nodes still hold it; {reached}"),
        Why::Other => format!("the daemon of this host ({host}) reported it; {reached}"),
    };
    let then = match lost.then {
        None => "the command was not started",
        Some(OnLost::Kill | OnLost::Term) if lost.is_refused => {
            "the command keeps running, because canal cannot signal it"
        }
        Some(OnLost::Kill | OnLost::Term) => "canal ends the command",
        Some(OnLost::Warn) => "the command keeps running (--on-lost warn)",
    };
    format!("lost {keys} (token {token}) at {at}: {why}; {then}")
}

/// The `--json` output.
#[derive(Debug, Default, Serialize)]
struct LossReport<'a> {
    lost: &'a str,
    message: &'a str,
    lease: Option<&'a LostLease>,
    holders: Vec<&'a HolderInfo>,
    /// These are only there for a lease over nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    need: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<Vec<PartReport<'a>>>,
}

/// Prints the message, and returns the exit code.
pub(crate) fn explain(failure: &Failure, json: bool) -> Result<Failed> {
    let reason = reason(failure);
    if json {
        stdout::print_json(&LossReport {
            lost: reason,
            message: &failure.message,
            lease: failure.lost.as_deref(),
            holders: failure.holders.iter().collect(),
            ..LossReport::default()
        })?;
    }
    lines(failure, reason, &Now::here()).iter().for_each(|line| stderr::message(line));
    if reason == "expired" {
        let often = "renew a lease every third of its TTL, so that one failed renewal does no harm";
        stderr::hint(often);
    }
    Ok(Failed::silent(OwnCode::LockLost.number()))
}

fn lines(failure: &Failure, reason: &str, now: &Now) -> Vec<String> {
    let sentence = |lost: &LostLease| lost.sentence(reason, &format!(" {}", now.when(&lost.at)));
    let first = failure.lost.as_deref().and_then(sentence);
    let first = first.unwrap_or_else(|| failure.message.clone());
    let holders = failure.holders.iter().map(|one| format!("now held by {}", holder(one, now)));
    once(first).chain(holders).collect()
}

/// A node's answer, as `--json` prints it.
#[derive(Debug, Serialize)]
pub(crate) struct PartReport<'a> {
    name: &'a str,
    /// `renewed`, `released`, `refused`, `lost`, `away`, or `none` for a node that held no part
    /// when the handle was made and holds none now.
    state: &'static str,
    /// For a lost part: how it ended, as for a lease of one daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<&'a str>,
    /// Text for the user; null if there is none.
    message: Option<&'a str>,
}

/// The parts of a lease over nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts<'a> {
    pub(crate) handle: &'a LeaseHandle,
    /// The last answer of each node.
    pub(crate) answers: &'a [PartAnswer],
}

impl<'a> Parts<'a> {
    /// The answer of each node.
    pub(crate) fn reports(self) -> Vec<PartReport<'a>> {
        let Self { handle, answers } = self;
        answers.iter().zip(&handle.parts).map(|(answer, part)| report(answer, part.held)).collect()
    }

    /// A line for each node that held a part when the handle was made, and has not confirmed that
    /// it still does.
    pub(crate) fn missing(self) -> Vec<String> {
        self.held().filter_map(missing).collect()
    }

    /// A line for each node that held a part when the handle was made, and answered that it no
    /// longer does.
    pub(crate) fn gone(self) -> Vec<String> {
        self.held().filter(|answer| answer.said.is_some()).filter_map(missing).collect()
    }

    fn held(self) -> impl Iterator<Item = &'a PartAnswer> {
        let Self { handle, answers } = self;
        answers.iter().zip(&handle.parts).filter(|(_, part)| part.held).map(|(answer, _)| answer)
    }

    /// The parts that were released, each with its node.
    pub(crate) fn released(self) -> impl Iterator<Item = (&'a str, &'a ReleasedHold)> {
        self.answers.iter().flat_map(|answer| {
            let released = match &answer.said {
                Some(PartSaid::Released(released)) => &released.released[..],
                _ => &[],
            };
            released.iter().map(|one| (answer.name.as_str(), one))
        })
    }

    /// Reports that too few nodes held the lease, and returns the failure with its exit code.
    /// `late` are the nodes that did not renew it in time.
    pub(crate) fn lost(self, late: &[usize], json: bool) -> Result<Failed> {
        let Self { handle: LeaseHandle { need, .. }, answers } = self;
        let lost = answers.iter().filter_map(|answer| match &answer.said {
            Some(PartSaid::Lost(failure)) => Some(failure),
            _ => None,
        });
        let lost: Vec<_> = lost.collect();
        let (gone, all) = (lost.len(), answers.len());
        let mut message = format!(
            "the lease is lost: it is no longer held on {gone} of its {all} nodes, and it needs \
             {need}"
        );
        if gone == 0 {
            message =
                format!("the lease counts as lost: fewer than {need} nodes renewed it in time");
        }
        if json {
            stdout::print_json(&LossReport {
                lost: lost.first().map_or("expired", |failure| reason(failure)),
                message: &message,
                holders: lost.iter().flat_map(|failure| failure.holders.iter()).collect(),
                need: Some(*need),
                nodes: Some(self.reports()),
                ..LossReport::default()
            })?;
        }
        stderr::message(&message);
        let late = late.iter().filter_map(|node| answers.get(*node));
        let late = late.filter(|it| matches!(it.said, Some(PartSaid::Renewed(_)))).map(away);
        self.missing().into_iter().chain(late).for_each(|line| stderr::message(&line));
        Ok(Failed::silent(OwnCode::LockLost.number()))
    }

    /// The failure if too few nodes answer.
    pub(crate) fn unreached(self, hint: Option<&str>) -> Failed {
        Failed::new(self.missing().join("; ")).hint(
            hint.unwrap_or("retry, or wait: the lease ends on each node when its TTL expires"),
        )
    }
}

fn report(answer: &PartAnswer, held: bool) -> PartReport<'_> {
    let (state, lost, message) = match (&answer.said, &answer.trouble) {
        (Some(PartSaid::Renewed(_)), _) => ("renewed", None, None),
        (Some(PartSaid::Released(_)), _) => ("released", None, None),
        (Some(PartSaid::Lost(_)), _) if !held => ("none", None, None),
        (Some(PartSaid::Lost(it)), _) => ("lost", Some(reason(it)), Some(&it.message)),
        (None, Some(PartTrouble::Refused(why))) => ("refused", None, Some(why)),
        (None, Some(PartTrouble::Away(why))) => ("away", None, Some(why)),
        (None, None) => ("away", None, None),
    };
    PartReport { name: &answer.name, state, lost, message: message.map(String::as_str) }
}

fn missing(answer: &PartAnswer) -> Option<String> {
    let name = &answer.name;
    match (&answer.said, &answer.trouble) {
        (Some(PartSaid::Renewed(_) | PartSaid::Released(_)), _) => None,
        (Some(PartSaid::Lost(failure)), _) => Some(format!("{name}: {}", failure.message)),
        (None, Some(PartTrouble::Refused(why))) => Some(format!("{name}: {why}")),
        (None, _) => Some(away(answer)),
    }
}

fn away(answer: &PartAnswer) -> String {
    let why = match &answer.trouble {
        Some(PartTrouble::Away(why) | PartTrouble::Refused(why)) => why,
        None => "it does not answer",
    };
    format!("{} is unreachable: {why}", answer.name)
}

fn reason(failure: &Failure) -> &str {
    failure.reason.as_deref().unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use crate::cli::wording::holders_and_waiters::tests::somebody;
    use crate::cli::wording::time::tests::at;
    use crate::protocol::ErrorName;

    use super::*;

    fn lost(why: Why, then: Option<OnLost>) -> LostHold {
        let (engine, host) = ("etcd".to_owned(), "alpha".to_owned());
        LostHold {
            token: 77,
            why,
            at: 60_000,
            reached_at: 15_000,
            engine,
            host,
            then,
            is_refused: false,
        }
    }

    #[test]
    fn the_message_has_what_was_lost_when_why_and_what_follows() {
        let sentence = |why, then| hold_sentence(&lost(why, then), &["db", "a b"], "14:02:11");
        assert_eq!(
            sentence(Why::Away, Some(OnLost::Kill)),
            "lost `db`, `a b` (token 77) at 14:02:11: canal last reached etcd 45s earlier; canal \
             ends the command"
        );
        let message = sentence(Why::Gone, Some(OnLost::Warn));
        assert!(
            message.contains("this host (alpha) was declared gone; canal last reached etcd"),
            "{message}"
        );
        assert!(message.ends_with("; the command keeps running (--on-lost warn)"), "{message}");
        let message = sentence(Why::Rewritten, None);
        assert!(message.contains("the history of etcd changed"), "{message}");
        assert!(message.ends_with("; the command was not started"), "{message}");
    }

    #[test]
    fn a_command_that_cannot_be_signalled_is_not_said_to_be_ended() {
        let lost = LostHold { is_refused: true, ..lost(Why::Away, Some(OnLost::Kill)) };
        let message = hold_sentence(&lost, &["db"], "14:02:11");
        assert!(
            message.ends_with("; the command keeps running, because canal cannot signal it"),
            "{message}"
        );
    }

    #[test]
    fn a_command_that_was_not_begun_is_122() {
        let failed = not_begun(&lost(Why::Away, None), &["db"]);
        assert_eq!(failed.code, 122);
        assert!(failed.message.starts_with("lost `db` (token 77) at "), "{}", failed.message);
    }

    #[test]
    fn what_was_lost_when_and_why_is_one_sentence() {
        let now = at("2026-11-20T14:05:23Z");
        let lost = |more_keys| LostLease {
            at: "2026-11-20T14:02:11Z".to_owned(),
            token: 7,
            key: "db".to_owned(),
            more_keys,
            ttl_ms: 60_000,
        };
        let failure = Failure {
            lost: Some(Box::new(lost(0))),
            holders: [somebody(812, Some("make"), "2026-11-20T14:02:12Z")].into(),
            ..Failure::new(ErrorName::LeaseLost, "whatever")
        };
        assert_eq!(
            lines(&failure, "expired", &now),
            [
                "the lease on `db` (token 7) expired 3m12s ago, at 14:02:11: it was not renewed \
                 for 1m00s",
                "now held by pid 812 `make` (root, for 3m11s)",
            ]
        );
        for (reason, words) in [("released", "was released"), ("forced", "was broken by force")] {
            let failure = Failure { lost: Some(Box::new(lost(1))), ..failure.clone() };
            let said = lines(&failure, reason, &now).remove(0);
            let lease = "the lease on `db` and 1 other key (token 7)";
            assert_eq!(said, format!("{lease} {words} 3m12s ago, at 14:02:11"));
        }
        assert_eq!(lines(&failure, "of a later version", &now)[0], "whatever");
    }
}
