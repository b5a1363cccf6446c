//! Changes of this host that the log has not returned yet, and the work that follows once it has.
//!
//! Invariant: each change comes back once. The state of the call that waits for it names its
//! ticket. If no call does, because the client has left or has received a failure, canal grants it
//! nothing: a request is released as soon as it comes out of the log.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::calls::call::ConnId;
use crate::membership::Ticket;
use canal_core::{Change, Outcome, Request, RequestId, Revision, Tag, Wait};
use canal_sys::clock;
use canal_sys::peer::Credentials;

/// The change of a question: it has no effect, and only takes a place in the log. The embedded
/// journal does not record it.
pub(crate) const VOID: Change = Change::Confirm { request: RequestId(0) };

/// The work to do when a change of this host has been applied.
#[derive(Debug)]
pub(crate) enum Completion {
    /// Only the work that each such change needs.
    Nothing,
    /// The call of this connection continues, unless its client has left. This was its peer.
    Call(ConnId, Credentials),
    /// A stopped waiter ahead of another one was suspended: the next one ahead may be stopped, too.
    CheckAhead {
        /// The waiter that is behind.
        behind: RequestId,
        /// How many more may be checked for it.
        left: usize,
    },
    /// A build gave up a slot, which is meant for this build.
    JobSlot { build: Tag },
    /// This build asked for one more job token.
    JobToken { build: Tag },
}

/// A change that was applied.
#[derive(Debug)]
pub(crate) struct Applied {
    /// Its position in the log.
    pub revision: Revision,
    /// Its results.
    pub outcomes: Vec<Outcome>,
}

/// A change that is not in the log yet.
#[derive(Debug)]
pub(crate) struct Proposed {
    pub change: Change,
    pub then: Completion,
    /// When it was proposed.
    pub since: Instant,
}

/// Changes of this host that are not in the log yet, in the order of their tickets.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    each: VecDeque<(Ticket, Proposed)>,
    /// The ticket of the last change.
    last: Ticket,
}

impl InFlight {
    /// The first change.
    pub(crate) fn first(&self) -> Option<(Ticket, &Change)> {
        self.each.front().map(|(ticket, proposed)| (*ticket, &proposed.change))
    }

    pub(crate) fn add(&mut self, change: Change, then: Completion) -> Ticket {
        self.last.0 += 1;
        self.each.push_back((self.last, Proposed { change, then, since: clock::now() }));
        self.last
    }

    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<Proposed> {
        let at = self.each.binary_search_by_key(&ticket, |(ticket, _)| *ticket).ok()?;
        self.each.remove(at).map(|(_, proposed)| proposed)
    }

    pub(crate) fn len(&self) -> usize {
        self.each.len()
    }

    /// Whether this change is in flight. A suspension revokes a grant that precedes it in the log.
    /// The client of a request that is being withdrawn receives no further message.
    pub(crate) fn has(&self, change: &Change) -> bool {
        self.each.iter().any(|(_, proposed)| proposed.change == *change)
    }

    /// The requests that calls made.
    fn requests(&self) -> impl DoubleEndedIterator<Item = (Ticket, &Arc<Request>)> {
        self.each.iter().filter_map(|(ticket, it)| match (&it.change, &it.then) {
            (Change::Request(request), Completion::Call(..)) => Some((*ticket, request)),
            _ => None,
        })
    }

    /// How many requests of a user are in flight and may have to wait.
    pub(crate) fn of_user(&self, uid: u32) -> usize {
        self.requests().filter(|(_, it)| it.uid == uid && it.wait != Wait::No).count()
    }

    /// The last request with this tag, and its ticket.
    pub(crate) fn tagged(&self, tag: Tag) -> Option<(Ticket, &Arc<Request>)> {
        self.requests().rfind(|(_, request)| request.tag == tag)
    }

    /// Notes that a call of another connection waits for a change.
    pub(crate) fn pass_on(&mut self, ticket: Ticket, to: ConnId) {
        if let Ok(at) = self.each.binary_search_by_key(&ticket, |(ticket, _)| *ticket)
            && let Some((_, Proposed { then: Completion::Call(id, _), .. })) = self.each.get_mut(at)
        {
            *id = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::plain_request;
    use canal_core::{HostId, LeaseId, Owner};

    impl InFlight {
        /// The connection whose call waits for this change.
        pub(crate) fn conn_of(&self, ticket: Ticket) -> Option<ConnId> {
            let (_, proposed) = self.each.iter().find(|(other, _)| *other == ticket)?;
            if let Completion::Call(id, _) = proposed.then { Some(id) } else { None }
        }
    }

    fn request(tag: u128, uid: u32, wait: Wait) -> Change {
        let owner = Owner::Lease(LeaseId(tag));
        let plain = plain_request(Tag(tag), HostId(1), (owner, uid), Vec::new());
        Change::Request(Arc::new(Request { wait, ..plain }))
    }

    #[test]
    fn requests_in_flight_that_may_wait_count_towards_their_users_limit() {
        let mut in_flight = InFlight::default();
        let waits = Wait::Yes { until: None };
        for (ticket, (uid, wait)) in
            [(7, waits), (7, Wait::No), (7, waits), (8, waits)].into_iter().enumerate()
        {
            let call = Completion::Call(ConnId::default(), Credentials { pid: 1, uid, gid: 0 });
            in_flight.add(request(ticket as u128, uid, wait), call);
        }
        assert_eq!([7, 8, 9].map(|uid| in_flight.of_user(uid)), [2, 1, 0]);
        for ticket in 1..=4 {
            in_flight.take(Ticket(ticket));
        }
        assert_eq!([7, 8].map(|uid| in_flight.of_user(uid)), [0, 0]);
        assert_eq!(in_flight.len(), 0);
    }
}
