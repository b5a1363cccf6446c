//! Describes a lost lease: what was lost, when and why, and the present holder; and a lease over
//! nodes, some of whose nodes do not answer or no longer hold it.

use std::time::Duration;

use serde::Serialize;

use super::participant::holder;
use crate::cli::{Failed, Now, Result, Verbosity, sanitize, stated, stdout};
use crate::client::nodes::lease::LeaseHandle;
use crate::protocol::{Failure, HolderInfo, LostLease, ReleasedHold};
use crate::run::OwnCode;
use crate::run::nodes::{PartAnswer, PartSaid, PartTrouble};

/// The `--json` output.
#[derive(Debug, Serialize)]
struct LossReport<'a> {
    lost: &'a str,
    message: &'a str,
    lease: Option<&'a LostLease>,
    holders: Vec<&'a HolderInfo>,
    #[serde(flatten)]
    parts: Option<PartReports<'a>>,
}

/// The further fields of a lease over nodes.
#[derive(Debug, Serialize)]
struct PartReports<'a> {
    need: usize,
    nodes: Vec<PartReport<'a>>,
}

/// Prints the message, and returns the exit code.
pub(crate) fn explain(failure: &Failure, json: bool, verbosity: Verbosity) -> Result<Failed> {
    let reason = reason(failure);
    if json {
        stdout::print_json(&LossReport {
            lost: reason,
            message: &failure.message,
            lease: failure.lost.as_deref(),
            holders: failure.holders.iter().collect(),
            parts: None,
        })?;
    }
    for line in lines(failure, reason, &Now::here()) {
        verbosity.message(&line);
    }
    if reason == "expired" {
        verbosity
            .hint("renew a lease every third of its TTL, so that one failed renewal does no harm");
    }
    Ok(Failed::silent(OwnCode::LockLost.number()))
}

fn lines(failure: &Failure, reason: &str, now: &Now) -> Vec<String> {
    let first = match &failure.lost {
        Some(lost) => sentence(lost, reason, now).unwrap_or_else(|| failure.message.clone()),
        None => failure.message.clone(),
    };
    let holders = failure.holders.iter();
    let holders = holders.map(|one| format!("now held by {}", holder(one, now)));
    std::iter::once(first).chain(holders).collect()
}

fn sentence(lost: &LostLease, reason: &str, now: &Now) -> Option<String> {
    let key = sanitize(&lost.key);
    let keys = match lost.more_keys {
        0 => format!("`{key}`"),
        1 => format!("`{key}` and 1 other key"),
        more => format!("`{key}` and {more} other keys"),
    };
    let lease = format!("the lease on {keys} (token {})", lost.token);
    let when = format!("{}, at {}", now.ago(&lost.at), now.clock(&lost.at));
    Some(match reason {
        "expired" => {
            let ttl = stated(Duration::from_millis(lost.ttl_ms));
            format!("{lease} expired {when}: it was not renewed for {ttl}")
        }
        "released" => format!("{lease} was released {when}"),
        "forced" => format!("{lease} was broken by force {when}"),
        "withdrawn" => format!(
            "the daemon took {lease} back {when}: its client ended before it confirmed the grant"
        ),
        _ => return None,
    })
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
        answers.iter().zip(handle.held()).map(|(answer, held)| report(answer, held)).collect()
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
        answers.iter().zip(handle.held()).filter(|(_, held)| *held).map(|(answer, _)| answer)
    }

    /// The parts that were released, each with its node.
    pub(crate) fn released(self) -> impl Iterator<Item = (&'a str, &'a ReleasedHold)> {
        self.answers.iter().flat_map(|answer| {
            let released = match &answer.said {
                Some(PartSaid::Released(released)) => &released.released[..],
                _ => &[],
            };
            released.iter().map(move |one| (answer.name.as_str(), one))
        })
    }

    /// Reports that too few nodes held the lease, and returns the failure with its exit code.
    /// `late` are the nodes that did not renew it in time.
    pub(crate) fn lost(self, late: &[usize], json: bool, verbosity: Verbosity) -> Result<Failed> {
        let Self { handle, answers } = self;
        let lost = answers.iter().filter_map(|answer| match &answer.said {
            Some(PartSaid::Lost(failure)) => Some(failure),
            _ => None,
        });
        let lost: Vec<_> = lost.collect();
        let need = handle.need();
        let message = match (lost.len(), answers.len()) {
            (0, _) => {
                format!("the lease counts as lost: fewer than {need} nodes renewed it in time")
            }
            (gone, all) => format!(
                "the lease is lost: it is no longer held on {gone} of its {all} nodes, and it \
                 needs {need}"
            ),
        };
        if json {
            stdout::print_json(&LossReport {
                lost: lost.first().map_or("expired", |failure| reason(failure)),
                message: &message,
                lease: None,
                holders: lost.iter().flat_map(|failure| failure.holders.iter()).collect(),
                parts: Some(PartReports { need, nodes: self.reports() }),
            })?;
        }
        verbosity.message(&message);
        let late = late.iter().filter_map(|node| answers.get(*node));
        let late =
            late.filter(|answer| matches!(answer.said, Some(PartSaid::Renewed(_)))).map(away);
        self.missing().into_iter().chain(late).for_each(|line| verbosity.message(&line));
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
        (Some(PartSaid::Lost(failure)), _) => {
            ("lost", Some(reason(failure)), Some(&failure.message))
        }
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
    use super::*;
    use crate::cli::wording::participant::tests::somebody;
    use crate::cli::wording::time::tests::at;
    use crate::protocol::ErrorName;

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
            let said = sentence(&lost(1), reason, &now).unwrap();
            let lease = "the lease on `db` and 1 other key (token 7)";
            assert_eq!(said, format!("{lease} {words} 3m12s ago, at 14:02:11"));
        }
        assert_eq!(lines(&failure, "of a later version", &now)[0], "whatever");
    }
}
