//! Describes a lost lease: what was lost, when and why, and the present holder.

use std::time::Duration;

use serde::Serialize;

use super::participant::{COMMAND_COLUMNS, holder};
use super::time::Now;
use crate::cli::arguments::duration::stated;
use crate::cli::failed::Failed;
use crate::cli::output::sanitize::sanitize;
use crate::cli::output::stderr::Verbosity;
use crate::cli::output::stdout;
use crate::protocol::{Failure, HolderInfo, LostLease};
use crate::run::OwnCode;

/// The `--json` output.
#[derive(Debug, Serialize)]
struct LossReport<'a> {
    lost: &'a str,
    message: &'a str,
    lease: Option<&'a LostLease>,
    holders: &'a [HolderInfo],
}

/// Prints the message, and returns the exit code.
pub(crate) fn explain(
    failure: &Failure,
    json: bool,
    verbosity: Verbosity,
) -> Result<Failed, Failed> {
    let reason = failure.reason.as_deref().unwrap_or("unknown");
    if json {
        let (message, holders) = (failure.message.as_str(), &*failure.holders);
        let lease = failure.lost.as_deref();
        stdout::print(&stdout::json(&LossReport { lost: reason, message, lease, holders })?)?;
    }
    for line in lines(failure, reason, &Now::here()) {
        verbosity.message(&line);
    }
    if reason == "expired" {
        verbosity.hint("renew a lease after a third of its TTL, so that one renewal may fail");
    }
    Ok(Failed::silent(OwnCode::LockLost.number()))
}

fn lines(failure: &Failure, reason: &str, now: &Now) -> Vec<String> {
    let first = match &failure.lost {
        Some(lost) => sentence(lost, reason, now).unwrap_or_else(|| failure.message.clone()),
        None => failure.message.clone(),
    };
    let holders = failure.holders.iter();
    let holders = holders.map(|one| format!("now held by {}", holder(one, COMMAND_COLUMNS, now)));
    std::iter::once(first).chain(holders).collect()
}

fn sentence(lost: &LostLease, reason: &str, now: &Now) -> Option<String> {
    let key = sanitize(&lost.key);
    let keys = match lost.more_keys {
        0 => format!("`{key}`"),
        1 => format!("`{key}` and 1 other key"),
        more => format!("`{key}` and {more} other keys"),
    };
    let lease = format!("the lease of {keys} (token {})", lost.token);
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
                "the lease of `db` (token 7) expired 3m12s ago, at 14:02:11: it was not renewed \
                 for 1m00s",
                "now held by pid 812 `make` (root, for 3m11s)",
            ]
        );
        for (reason, words) in [("released", "was released"), ("forced", "was broken by force")] {
            let said = sentence(&lost(1), reason, &now).unwrap();
            let lease = "the lease of `db` and 1 other key (token 7)";
            assert_eq!(said, format!("{lease} {words} 3m12s ago, at 14:02:11"));
        }
        assert_eq!(lines(&failure, "of a later version", &now)[0], "whatever");
    }
}
