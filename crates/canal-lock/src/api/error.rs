//! Reports why a call failed.

use std::error::Error as _;
use std::fmt;

use crate::client::ClientError;
use canal_protocol::{CycleStepInfo, ErrorName, Failure, HolderInfo};

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The lock is not free, and the request was not allowed to wait, or not behind this many
    /// waiters.
    Busy,
    /// The lock did not become free within the time that the request was allowed to wait.
    Timeout,
    /// The request would wait forever, because its session and others wait for each other, or
    /// because its own session holds what it asks for. [`Error::cycle`] names the others.
    Deadlock,
    /// The request itself is wrong: its key, a size or a path.
    Invalid,
    /// The key is paused, and the request was not allowed to wait, or its time ran out.
    Paused,
    /// A newer request of the same user took its place in the queue.
    Superseded,
    /// The key is in use, or has a stored size, as the other kind of lock (slots or buckets).
    Mismatch,
    /// This user lacks the permission.
    Denied,
    /// The daemon reached a limit: connections, waiters or bytes of keys.
    Limit,
    /// No daemon answers, and none could be started, or starting one was not allowed.
    Unreachable,
    /// The daemon answers but cannot decide now: it cannot reach its engine, or its disk is full.
    Unavailable,
    /// The lock is no longer held: someone released it by force, or an engine lost it.
    Lost,
    /// Anything else: a system call failed, or the daemon made an error.
    Other,
}

/// The reason why a call failed. Its text is the message that the `canal` command would print.
#[derive(thiserror::Error)]
#[error(transparent)]
pub struct Error(Box<ClientError>);

impl Error {
    /// The error for a request that is wrong in itself.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        ClientError::from(Failure::new(ErrorName::BadRequest, message)).into()
    }

    /// The kind of this error.
    pub fn kind(&self) -> ErrorKind {
        match &*self.0 {
            ClientError::Failure(failure) => kind_of(failure),
            ClientError::NoDaemon(_)
            | ClientError::Start(_)
            | ClientError::Silent { .. }
            | ClientError::Gone(_)
            | ClientError::Abandoned
            | ClientError::HeldAtOwnDaemon { .. }
            | ClientError::Place(_) => ErrorKind::Unreachable,
            ClientError::Io(_) | ClientError::UnknownError { .. } | ClientError::Protocol(_) => {
                ErrorKind::Other
            }
        }
    }

    /// Advice on how to solve the problem, if there is any.
    pub fn hint(&self) -> Option<&str> {
        self.failure()?.hint.as_deref()
    }

    /// For [`ErrorKind::Busy`] and [`ErrorKind::Timeout`]: the holders that block the request, the
    /// longest hold first, at most five.
    pub fn holders(&self) -> &[HolderInfo] {
        self.failure().map_or(&[], |failure| &failure.holders)
    }

    /// For [`ErrorKind::Deadlock`]: the whole ring, each waiter with what blocks it. Empty if the
    /// request conflicts only with its own session.
    pub fn cycle(&self) -> &[CycleStepInfo] {
        self.failure().map_or(&[], |failure| &failure.cycle)
    }

    fn failure(&self) -> Option<&Failure> {
        if let ClientError::Failure(failure) = &*self.0 { Some(failure) } else { None }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Error");
        shown.field("kind", &self.kind()).field("message", &self.to_string());
        if let Some(hint) = self.hint() {
            shown.field("hint", &hint);
        }
        if let Some(source) = self.source() {
            shown.field("source", &source);
        }
        shown.finish_non_exhaustive()
    }
}

impl From<ClientError> for Error {
    fn from(error: ClientError) -> Self {
        Self(Box::new(error))
    }
}

fn kind_of(failure: &Failure) -> ErrorKind {
    match failure.name {
        ErrorName::Refused => match failure.reason.as_deref() {
            Some("deadlock") => ErrorKind::Deadlock,
            Some("timeout") => ErrorKind::Timeout,
            Some("paused") => ErrorKind::Paused,
            Some("superseded") => ErrorKind::Superseded,
            _ => ErrorKind::Busy,
        },
        ErrorName::BadRequest | ErrorName::RequireTooLarge => ErrorKind::Invalid,
        ErrorName::Mismatch => ErrorKind::Mismatch,
        ErrorName::Denied => ErrorKind::Denied,
        ErrorName::TooManyConnections
        | ErrorName::TooManyWaiters
        | ErrorName::TooManyLeases
        | ErrorName::TooManyKeys
        | ErrorName::TooMuch => ErrorKind::Limit,
        ErrorName::DiskFull | ErrorName::Stopping | ErrorName::EngineAway | ErrorName::NotYet => {
            ErrorKind::Unavailable
        }
        ErrorName::NotHeld | ErrorName::LeaseLost | ErrorName::UnknownTag | ErrorName::Gone => {
            ErrorKind::Lost
        }
        ErrorName::OwnerGone
        | ErrorName::Malformed
        | ErrorName::Unsupported
        | ErrorName::SupervisorRequired
        | ErrorName::BadConfiguration
        | ErrorName::NotExclusive
        | ErrorName::NodeListDiffers
        | ErrorName::NotLasting
        | ErrorName::TokenTaken
        | ErrorName::Fault => ErrorKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn refused(reason: &str) -> Error {
        let failure = Failure::new(ErrorName::Refused, "db is full").hint("wait");
        ClientError::from(Failure { reason: Some(reason.into()), ..failure }).into()
    }

    #[test]
    fn a_refusal_is_told_by_its_reason() {
        for (reason, kind) in [
            ("full", ErrorKind::Busy),
            ("timeout", ErrorKind::Timeout),
            ("paused", ErrorKind::Paused),
            ("superseded", ErrorKind::Superseded),
            ("max-waiting", ErrorKind::Busy),
            ("deadlock", ErrorKind::Deadlock),
            ("of a later version", ErrorKind::Busy),
        ] {
            assert_eq!(refused(reason).kind(), kind);
        }
        let error = refused("full");
        assert_eq!(error.to_string(), "db is full");
        assert_eq!(error.hint(), Some("wait"));
        let shown = format!("{error:?}");
        assert!(shown.starts_with("Error { kind: Busy, message: \"db is full\""), "{shown}");
    }

    #[test]
    fn a_failed_system_call_is_the_source() {
        let error = Error::from(ClientError::Io(io::ErrorKind::StorageFull.into()));
        assert_eq!(error.kind(), ErrorKind::Other);
        assert!(error.source().is_some_and(|source| source.is::<io::Error>()));
        let error = Error::from(ClientError::Silent { pid: 7, state: 'T' });
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.source().is_none());
        assert_eq!(error.to_string(), "daemon pid 7 (state T) does not answer");
    }

    #[test]
    fn an_error_can_be_passed_between_threads() {
        fn check<T: Send + Sync + 'static>() {}
        check::<Error>();
    }
}
