//! The event that the current call of a connection waits for.
//!
//! Invariant: a state owns everything that its call needs to continue. The code that removes the
//! state answers the call or makes it wait again.

use std::sync::Arc;
use std::time::Instant;

use crate::calls::call::{Asked, Call, Replies};
use crate::membership::Ticket;
use crate::view::status_keys::Selection;
use canal_core::{Granted, Key, LeaseId, Outcome, Release, Request, RequestId, Table, Wait};
use canal_sys::clock;
use canal_sys::pidfd::Pidfd;

/// After this time, the client of a request that may wait learns what the request waits for.
const FIRST_WORD_MS: u64 = 1_000;

/// After this time, the client of any other call learns that the engine does not answer. Clients
/// wait 5 s.
const ANSWER_MS: u64 = 4_000;

/// The event that the current call of a connection waits for.
#[derive(Debug, Default)]
pub(crate) enum CallState {
    /// Nothing: the next call can be served.
    #[default]
    Idle,
    /// A grant of this request. [`Conns::waiter`](crate::net::all_connections::Conns::waiter)
    /// finds the connection.
    Waits(RequestId),
    /// The shared log.
    Log(LogWait),
    /// The end of a holder whose process is exiting, for a request that may not wait.
    Deferred(PendingAcquire),
    /// The disk: the lease of this request is granted but not durable yet. The client then gets
    /// the grant, or the token that confirms its part of a request over nodes.
    Stores(RequestId, Option<Box<Granted>>),
    /// The configuration: see `server/requests/configuration.rs`.
    Configuration,
    /// Its turn to receive a report: of this part of the status, which it watches, or the one that
    /// the next call asks for. See `server/turn.rs`.
    Report(Option<Selection>),
    /// The result of its query to the history: see `server/requests/reports/history.rs`.
    History,
    /// The next change of a part of the status.
    Watches(Selection),
    /// The next leader of a key. The number is the
    /// [news](crate::view::holder::LeaderFound::news) that its client got last.
    WatchesLeader(Key, u64),
}

/// A call that waits for the log.
#[derive(Debug)]
pub(crate) struct LogWait {
    pub what: Awaiting,
    /// Since when, in milliseconds of CLOCK_BOOTTIME.
    pub since: u64,
    /// The reports for the client of a request that may wait.
    pub patience: Option<Box<Patience>>,
}

/// The event of the log that a call waits for.
#[derive(Debug)]
pub(crate) enum Awaiting {
    /// The membership of this host, or a read of the log. The call is still the first in the queue
    /// of its connection.
    Membership,
    /// The membership of this host, to propose this request.
    MembershipOf(PendingAcquire),
    /// The call's change, until it comes out of the log.
    Change(Ticket, PendingCall),
}

/// A call whose change is on its way to the table.
#[derive(Debug)]
pub(crate) enum PendingCall {
    /// The client asked for a lock.
    Ask(PendingAcquire),
    /// The client asked what it would be granted. The change itself does nothing.
    Question(PendingAcquire),
    /// The client released something.
    Release(Release),
    /// The client renewed a lease.
    Renew(PendingRenewal),
    /// The client stored a size of this key, or paused or resumed it.
    Resize(Key),
    /// The client changed the priority of a session that waits: of this request, to the second
    /// number from the first.
    Prioritize(RequestId, i32, i32),
    /// The client confirmed that it reported the grant of this request to the owner.
    Confirm(RequestId),
    /// The client confirmed this part of a request over nodes.
    ConfirmAt(RequestId),
}

/// A request on its way to the table.
#[derive(Debug)]
pub(crate) struct PendingAcquire {
    pub request: Arc<Request>,
    /// The pidfd of the owner, if it is already open.
    pub pidfd: Option<Pidfd>,
    /// The end of the deferral, if the daemon deferred the request instead of refusing it.
    pub deferred_until: Option<Instant>,
    /// The limit on waiting requests, if the user has reached it. The daemon then grants this
    /// request immediately or refuses it.
    pub crowd: Option<usize>,
    /// Whether the client only asks what it would be granted.
    pub is_question: bool,
}

/// A renewal on its way to the table.
#[derive(Debug)]
pub(crate) struct PendingRenewal {
    pub lease: LeaseId,
    /// Whether the daemon releases the lease afterwards. It renews the lease only to find it in the
    /// log.
    pub give_back: bool,
    /// Whether the new TTL must be durable before the reply.
    pub keeps_ttl: bool,
}

/// The facts about a request that may wait, while the shared log delays it.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    /// When its wait expires, in milliseconds of CLOCK_BOOTTIME.
    pub until: Option<u64>,
    /// Whether the client accepts progress messages and has received none yet.
    pub untold: bool,
    /// The first key that it asks for.
    pub key: Arc<str>,
}

/// The subject of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Grant,
    Log,
    Death,
    Disk,
    Report,
    Status,
    Leader,
}

impl CallState {
    /// The subject of the wait, if the daemon has to find the calls that wait for it.
    pub(crate) fn subject(&self) -> Option<Subject> {
        Some(match self {
            Self::Waits(_) => Subject::Grant,
            Self::Log(_) => Subject::Log,
            Self::Deferred(_) => Subject::Death,
            Self::Stores(..) => Subject::Disk,
            Self::Report(_) => Subject::Report,
            Self::Watches(_) => Subject::Status,
            Self::WatchesLeader(..) => Subject::Leader,
            Self::Idle | Self::Configuration | Self::History => return None,
        })
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
}

impl PendingAcquire {
    /// A new request.
    pub(crate) fn new(request: Arc<Request>, pidfd: Option<Pidfd>) -> Self {
        Self { request, pidfd, deferred_until: None, crowd: None, is_question: false }
    }

    /// A request that already waited, for the next membership of this host. The limit on waiting
    /// requests does not apply to it, and it supersedes no others again.
    pub(crate) fn again(mut request: Arc<Request>, pidfd: Option<Pidfd>) -> Self {
        if request.max_waiting.is_some() || request.supersede.is_some() {
            Arc::make_mut(&mut request).has_waited();
        }
        Self::new(request, pidfd)
    }

    /// The state for reports to the client while the shared log delays the request, if the request
    /// may wait. `untold`: whether the client accepts progress messages.
    pub(crate) fn patience(&self, untold: bool) -> Option<Patience> {
        let Wait::Yes { until } = self.request.wait else { return None };
        let first = self.request.items.first();
        Some(Patience {
            until,
            untold,
            key: first.map(|it| it.key.text().clone()).unwrap_or_default(),
        })
    }
}

impl PendingRenewal {
    /// The outcome of a renewal that this host did not see, derived from a later table. A lease
    /// that lives now has lived ever since the client asked for the renewal, so the renewal
    /// succeeded. A lease that does not live now is lost in any case.
    pub(crate) fn unseen(&self, table: &Table) -> Vec<Outcome> {
        let frame = table.lease(self.lease).and_then(|frame| table.frame(frame));
        let holding = frame.filter(|frame| table.holds_in(frame.id).next().is_some());
        let renewal = holding.and_then(|frame| Some((frame.id, frame.lease?.renewals)));
        let renewed = renewal.map(|(frame, renewal)| Outcome::Renewed { frame, renewal });
        vec![renewed.unwrap_or(Outcome::LeaseGone)]
    }
}

impl Patience {
    /// The patience of a call that was not served yet, if it is a request that may wait.
    pub(crate) fn of(call: &Call) -> Option<Self> {
        let Asked::Acquire(acquire) = &call.asked else { return None };
        let until = match acquire.wait_ms {
            Some(0) => return None,
            wait_ms => wait_ms.map(clock::boottime_ms_after),
        };
        let key = acquire.items.first().map(|item| item.key.clone()).unwrap_or_default();
        Some(Self { until, untold: call.replies == Replies::Many, key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_call_is_told_why_and_every_other_is_answered_before_its_client_gives_up() {
        let pending = |patience: Option<Patience>| {
            let patience = patience.map(Box::new);
            LogWait { what: Awaiting::Membership, since: 1_000, patience }
        };
        assert_eq!(pending(None).due(), 5_000);
        let patience = |until, untold| Some(Patience { until, untold, key: "a".into() });
        assert_eq!(pending(patience(None, true)).due(), 2_000);
        assert_eq!(pending(patience(Some(1_500), true)).due(), 1_500);
        assert_eq!(pending(patience(Some(9_000), false)).due(), 9_000);
        assert_eq!(pending(patience(None, false)).due(), u64::MAX);
    }
}
