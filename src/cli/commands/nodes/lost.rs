//! Messages about a lease over nodes when some of its nodes do not answer, or no longer hold it.

use serde::Serialize;

use crate::cli::failed::Failed;
use crate::cli::output::stderr::Verbosity;
use crate::cli::output::stdout;
use crate::protocol::{HolderInfo, ReleasedHold};
use crate::run::OwnCode;
use crate::run::nodes::{Ending, LeaseHandle, PartAnswer, PartSaid, PartTrouble};

/// A node's answer, as `--json` prints it.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct PartReport<'a> {
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

/// The output of `--json` for a lost lease.
#[derive(Debug, Serialize)]
struct LossReport<'a> {
    lost: &'a str,
    message: String,
    lease: Option<()>,
    holders: Vec<&'a HolderInfo>,
    need: usize,
    nodes: Vec<PartReport<'a>>,
}

/// The answer of each node.
pub(super) fn reports<'a>(handle: &LeaseHandle, answers: &'a [PartAnswer]) -> Vec<PartReport<'a>> {
    answers.iter().zip(handle.held()).map(|(answer, held)| report(answer, held)).collect()
}

fn report(answer: &PartAnswer, held: bool) -> PartReport<'_> {
    let name = answer.name.as_str();
    match &answer.said {
        Some(PartSaid::Lost(_)) if !held => {
            PartReport { name, state: "none", lost: None, message: None }
        }
        Some(PartSaid::Renewed(_)) => {
            PartReport { name, state: "renewed", lost: None, message: None }
        }
        Some(PartSaid::Released(_)) => {
            PartReport { name, state: "released", lost: None, message: None }
        }
        Some(PartSaid::Lost(failure)) => PartReport {
            name,
            state: "lost",
            lost: Some(reason(failure.reason.as_deref())),
            message: Some(&failure.message),
        },
        None => {
            let (state, message) = match &answer.trouble {
                Some(PartTrouble::Refused(why)) => ("refused", Some(why.as_str())),
                Some(PartTrouble::Away(why)) => ("away", Some(why.as_str())),
                None => ("away", None),
            };
            PartReport { name, state, lost: None, message }
        }
    }
}

fn reason(reason: Option<&str>) -> &str {
    reason.unwrap_or("unknown")
}

/// A line for each node that held a part when the handle was made, and has not confirmed that it
/// still does.
pub(super) fn missing(handle: &LeaseHandle, answers: &[PartAnswer]) -> Vec<String> {
    held(handle, answers).filter_map(sentence).collect()
}

/// A line for each node that held a part when the handle was made, and answered that it no longer
/// does.
pub(super) fn gone(handle: &LeaseHandle, answers: &[PartAnswer]) -> Vec<String> {
    held(handle, answers).filter(|answer| answer.said.is_some()).filter_map(sentence).collect()
}

fn held<'a>(
    handle: &LeaseHandle,
    answers: &'a [PartAnswer],
) -> impl Iterator<Item = &'a PartAnswer> {
    answers.iter().zip(handle.held()).filter(|(_, held)| *held).map(|(answer, _)| answer)
}

fn sentence(answer: &PartAnswer) -> Option<String> {
    let name = &answer.name;
    match &answer.said {
        Some(PartSaid::Renewed(_) | PartSaid::Released(_)) => None,
        Some(PartSaid::Lost(failure)) => Some(format!("{name}: {}", failure.message)),
        None => match &answer.trouble {
            Some(PartTrouble::Refused(why)) => Some(format!("{name}: {why}")),
            _ => Some(away(answer)),
        },
    }
}

fn away(answer: &PartAnswer) -> String {
    let why = match &answer.trouble {
        Some(PartTrouble::Away(why) | PartTrouble::Refused(why)) => why,
        None => "it does not answer",
    };
    format!("{} is away: {why}", answer.name)
}

/// The parts that were released.
pub(super) fn released(answers: &[PartAnswer]) -> impl Iterator<Item = (&str, &ReleasedHold)> {
    answers.iter().flat_map(|answer| {
        let released = match &answer.said {
            Some(PartSaid::Released(released)) => &released.released[..],
            _ => &[],
        };
        released.iter().map(move |one| (answer.name.as_str(), one))
    })
}

/// Reports that too few nodes held the lease, and returns the failure with its exit code. `late`
/// are the nodes that did not renew it in time.
pub(super) fn explain(
    handle: &LeaseHandle,
    answers: &[PartAnswer],
    late: &[usize],
    json: bool,
    verbosity: Verbosity,
) -> Result<Failed, Failed> {
    let lost = answers.iter().filter_map(|answer| match &answer.said {
        Some(PartSaid::Lost(failure)) => Some(failure),
        _ => None,
    });
    let lost: Vec<_> = lost.collect();
    let need = handle.need();
    let message = match (lost.len(), answers.len()) {
        (0, _) => format!("the lease counts as lost: fewer than {need} nodes renewed it in time"),
        (gone, all) => {
            format!("the lease is lost: {gone} of its {all} nodes do not hold it, and {need} must")
        }
    };
    if json {
        let first = lost.first().and_then(|failure| failure.reason.as_deref());
        stdout::print(&stdout::json(&LossReport {
            lost: match first {
                Some(first) => first,
                None if lost.is_empty() => "expired",
                None => "unknown",
            },
            message: message.clone(),
            lease: None,
            holders: lost.iter().flat_map(|failure| failure.holders.iter()).collect(),
            need,
            nodes: reports(handle, answers),
        })?)?;
    }
    verbosity.message(&message);
    let late = late.iter().filter_map(|node| answers.get(*node));
    let late = late.filter(|answer| matches!(answer.said, Some(PartSaid::Renewed(_)))).map(away);
    for line in missing(handle, answers).into_iter().chain(late) {
        verbosity.message(&line);
    }
    Ok(Failed::silent(OwnCode::LockLost.number()))
}

/// The failure if too few nodes answer.
pub(super) fn unreached(handle: &LeaseHandle, ending: &Ending) -> Failed {
    let failed = Failed::new(missing(handle, &ending.answers).join("; "));
    match &ending.hint {
        Some(hint) => failed.hint(hint),
        None => failed.hint("retry, or wait: the lease ends at each node when its TTL expires"),
    }
}
