//! Common failures, and the words for owners and times.

use std::borrow::Cow;
use std::fmt::Display;

use canal_core::{Owner, UnixMillis};
use canal_protocol::{ErrorName, Failure, OWNER_GONE};

/// The pid of an owner's process. 0 for a lease or a jobserver.
pub(crate) fn pid_of(owner: &Owner) -> u32 {
    if let Owner::Process(process) = owner { process.pid } else { 0 }
}

/// An owner in messages that name no command.
pub(crate) fn owner_words(owner: &Owner) -> String {
    match owner {
        Owner::Process(process) => format!("pid {}", process.pid),
        Owner::Lease(_) => "a lease".to_owned(),
        Owner::Jobserver(_) => "a build job".to_owned(),
    }
}

/// A time as RFC 3339, UTC.
pub(crate) fn time(at: UnixMillis) -> String {
    canal_text::time::utc(at.0)
}

/// The failure for a client whose owner process has ended.
pub(crate) fn owner_gone() -> Failure {
    Failure::new(ErrorName::OwnerGone, OWNER_GONE)
}

/// The failure for a client whose call is not valid.
pub(crate) fn bad(message: impl Into<String>) -> Failure {
    Failure::new(ErrorName::BadRequest, message)
}

/// The failure for a client that may not do what it asks for.
pub(crate) fn denied(message: impl Into<String>) -> Failure {
    Failure::new(ErrorName::Denied, message)
}

/// The failure for a client that names a hold or a request that does not exist.
pub(crate) fn not_held(message: impl Into<String>) -> Failure {
    Failure::new(ErrorName::NotHeld, message)
}

/// The failure for a client whose call needs what this machine cannot do, most often because its
/// disk is full.
pub(crate) fn cannot<E: Display>(what: &str) -> impl Fn(E) -> Failure {
    move |error| Failure::new(ErrorName::DiskFull, format!("cannot {what}: {error}"))
}

/// The error for a client whose request was withdrawn for another reason.
pub(crate) fn given_up() -> Failure {
    Failure::new(ErrorName::Fault, "the daemon gave up on the request")
        .hint("run the command again")
}

/// Why the daemon cannot start, if something can be done about it.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct StartError {
    /// The problem.
    pub what: String,
    /// The remedy.
    pub hint: Cow<'static, str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_in_utc() {
        assert_eq!(time(UnixMillis(0)), "1970-01-01T00:00:00Z");
        assert_eq!(time(UnixMillis(1_700_000_000_123)), "2023-11-14T22:13:20.123Z");
        assert!(time(UnixMillis(u64::MAX)).starts_with("9999-12-30"));
    }

    #[test]
    fn a_time_shows_its_fraction_only_if_it_has_one() {
        for (at, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (1, "1970-01-01T00:00:00.001Z"),
            (951_782_400_120, "2000-02-29T00:00:00.12Z"),
            (253_370_764_799_999, "9998-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(time(UnixMillis(at)), expected);
        }
    }
}
