//! The event that the current call of a connection waits for.
//!
//! Invariant: a state owns everything that its call needs to continue. The code that removes the
//! state answers the call or makes it wait again.

use crate::calls::pending_acquire::{Patience, PendingAcquire};
use crate::config::effective::Asked;
use crate::host::Ticket;
use crate::view::holder::LeaderWatch;
use crate::view::status::Selection;
use crate::waiters::leases::UnsyncedLease;
use canal_core::RequestId;

/// After this time, the client of a request that may wait learns what the request waits for.
const FIRST_WORD_MS: u64 = 1_000;

/// After this time, the client of any other call learns that the engine does not answer. Clients
/// wait 5 s.
const ANSWER_MS: u64 = 4_000;

/// The event that the current call of a connection waits for.
#[derive(Debug)]
pub(crate) enum CallState {
    /// Nothing: the next call can be served.
    Idle,
    /// A grant of this request. [`Conns::waiter`](crate::net::connections::Conns::waiter)
    /// finds the connection.
    Waits(RequestId),
    /// The shared log.
    Log(LogWait),
    /// The end of a holder whose process is exiting, for a request that may not wait.
    Deferred(Box<PendingAcquire>),
    /// The disk: a lease is granted but not durable yet.
    Stores(Box<UnsyncedLease>),
    /// The configuration, which a thread reads.
    Configuration(Asked),
    /// Its turn to receive a report: see `server/calls.rs`.
    Report,
    /// The result of its query to the history: see `server/requests/history.rs`.
    History,
    /// The next change of a part of the status.
    Watches(Box<StatusWatch>),
    /// The next leader of a key.
    WatchesLeader(Box<LeaderWatch>),
}

/// A client that watches a part of the status.
#[derive(Debug, Default)]
pub(crate) struct StatusWatch {
    pub selection: Selection,
    /// Whether the connection is queued for a report.
    pub is_queued: bool,
}

/// A call that waits for the log.
#[derive(Debug)]
pub(crate) struct LogWait {
    pub what: Awaiting,
    /// Since when, in milliseconds of CLOCK_BOOTTIME.
    pub since: u64,
    /// The reports for the client of a request that may wait.
    pub patience: Option<Patience>,
}

/// The event of the log that a call waits for.
#[derive(Debug)]
pub(crate) enum Awaiting {
    /// The membership of this host, or a read of the log. The call is still the first in the queue
    /// of its connection.
    Membership,
    /// The membership of this host, to propose this request.
    MembershipOf(Box<PendingAcquire>),
    /// The call's request, until it comes out of the log.
    Request(Ticket),
    /// Another change, until it comes out of the log.
    Change(Ticket),
}

/// The subject of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Grant,
    Log,
    Death,
    Disk,
    Configuration,
}

impl CallState {
    pub(crate) fn subject(&self) -> Option<Subject> {
        match self {
            Self::Waits(_) => Some(Subject::Grant),
            Self::Log(_) => Some(Subject::Log),
            Self::Deferred(_) => Some(Subject::Death),
            Self::Stores(_) => Some(Subject::Disk),
            Self::Configuration(_) => Some(Subject::Configuration),
            _ => None,
        }
    }

    /// Whether something beyond the connection depends on the call.
    pub(crate) fn holds_something(&self) -> bool {
        self.subject().is_some()
    }
}

impl LogWait {
    /// When the client has to get a message, in milliseconds of CLOCK_BOOTTIME.
    pub(crate) fn due(&self) -> u64 {
        match &self.patience {
            None => self.since + ANSWER_MS,
            Some(patience) => {
                let word = patience.untold.then_some(self.since + FIRST_WORD_MS);
                word.into_iter().chain(patience.until).min().unwrap_or(u64::MAX)
            }
        }
    }

    /// Whether the call waits for this change.
    pub(crate) fn is_for(&self, ticket: Ticket) -> bool {
        matches!(self.what, Awaiting::Request(it) | Awaiting::Change(it) if it == ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_call_is_told_why_and_every_other_is_answered_before_its_client_gives_up() {
        let pending = |patience| LogWait { what: Awaiting::Membership, since: 1_000, patience };
        assert_eq!(pending(None).due(), 5_000);
        let patience = |until, untold| Some(Patience { until, untold, key: "a".into() });
        assert_eq!(pending(patience(None, true)).due(), 2_000);
        assert_eq!(pending(patience(Some(1_500), true)).due(), 1_500);
        assert_eq!(pending(patience(Some(9_000), false)).due(), 9_000);
        assert_eq!(pending(patience(None, false)).due(), u64::MAX);
    }
}
