//! Describes a lock that was lost while its command ran, or before it started.

use std::time::Duration;

use super::time::clock_of;
use crate::cli::{Failed, short};
use crate::client::hold_monitor::LostHold;
use crate::protocol::OnLost;
use crate::run::OwnCode;
use crate::sys::deadline::Why;

/// Advice for a lost lock.
pub(crate) const HINT: &str = "see LOSING THE LOCK in canal-run(1)";

/// Advice about a process that canal cannot signal.
pub(crate) const REFUSED_HINT: &str = "run canal as the same user or as root so that it can end \
                                       the command; for now, canal waits for the command to end";

/// The failure of a command that did not start because its lock was already lost.
pub(crate) fn not_begun(lost: &LostHold, keys: &[&str]) -> Failed {
    Failed::with_code(OwnCode::LockLost.number(), message(lost, keys)).hint(HINT)
}

/// Describes what was lost, when and why, and the consequence.
pub(crate) fn message(lost: &LostHold, keys: &[&str]) -> String {
    sentence(lost, keys, &clock_of(lost.at))
}

/// `lost `db` (token 77) at 14:02:11: canal last reached etcd 45s earlier; canal ends the command`.
fn sentence(lost: &LostHold, keys: &[&str], at: &str) -> String {
    let keys: Vec<String> = keys.iter().map(|key| format!("`{key}`")).collect();
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
    format!("lost {} (token {token}) at {at}: {why}; {then}", keys.join(", "))
}

#[cfg(test)]
mod tests {
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
        let sentence = |why, then| sentence(&lost(why, then), &["db", "a b"], "14:02:11");
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
        let message = sentence(&lost, &["db"], "14:02:11");
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
}
