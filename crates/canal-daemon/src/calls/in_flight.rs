//! Changes of this host that the log has not returned yet.
//!
//! Invariant: each change comes back once. The call that waits for it names its ticket. If no call
//! does, because the client has left or has received a failure, canal grants it nothing: a request
//! is released as soon as it comes out of the log.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use crate::calls::completion::{Completion, PendingCall};
use crate::calls::conn_id::ConnId;
use crate::calls::pending_acquire::PendingAcquire;
use crate::host::Ticket;
use canal_core::{Request, RequestId, Tag, Wait};
use canal_sys::clock;

/// Changes of this host that are not in the log yet.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// In the order of their tickets.
    each: VecDeque<(Ticket, Proposed)>,
    /// The tickets of the requests among these changes.
    tags: BTreeMap<Tag, Ticket>,
    /// How many of these requests may wait, by user.
    users: BTreeMap<u32, usize>,
    /// Requests that are being withdrawn. Their clients receive no further message.
    pub leaving: BTreeSet<RequestId>,
    /// Requests that are being suspended. A suspension revokes a grant that precedes it in the log.
    pub suspending: BTreeMap<Ticket, RequestId>,
}

/// A change that is not in the log yet.
#[derive(Debug)]
pub(crate) struct Proposed {
    pub then: Completion,
    /// When it was proposed.
    pub since: Instant,
}

impl InFlight {
    pub(crate) fn add(&mut self, ticket: Ticket, then: Completion) {
        if let Completion::Call(_, PendingCall::Ask(newcomer)) = &then {
            self.tags.insert(newcomer.request.tag, ticket);
            if newcomer.request.wait != Wait::No {
                *self.users.entry(newcomer.request.uid).or_default() += 1;
            }
        }
        let proposed = Proposed { then, since: clock::now() };
        self.each.push_back((ticket, proposed));
    }

    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<Proposed> {
        let (_, proposed) = self.each.remove(self.at(ticket)?)?;
        self.suspending.remove(&ticket);
        if let Completion::Call(_, PendingCall::Ask(newcomer)) = &proposed.then {
            let Request { tag, uid, wait, .. } = *newcomer.request;
            if wait != Wait::No
                && let Entry::Occupied(mut count) = self.users.entry(uid)
            {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
            if self.tags.get(&tag) == Some(&ticket) {
                self.tags.remove(&tag);
            }
        }
        Some(proposed)
    }

    fn at(&self, ticket: Ticket) -> Option<usize> {
        self.each.binary_search_by_key(&ticket, |(ticket, _)| *ticket).ok()
    }

    pub(crate) fn get(&self, ticket: Ticket) -> Option<&Proposed> {
        self.each.get(self.at(ticket)?).map(|(_, proposed)| proposed)
    }

    /// How many requests of a user are in flight and may have to wait.
    pub(crate) fn of_user(&self, uid: u32) -> usize {
        self.users.get(&uid).copied().unwrap_or(0)
    }

    pub(crate) fn len(&self) -> usize {
        self.each.len()
    }

    /// Whether this change only produces an answer and leaves the table as it is.
    pub(crate) fn is_question(&self, ticket: Ticket) -> bool {
        self.get(ticket)
            .is_some_and(|it| matches!(it.then, Completion::Call(_, PendingCall::Question(_))))
    }

    /// Whether a request is being suspended.
    pub(crate) fn is_being_suspended(&self, request: RequestId) -> bool {
        self.suspending.values().any(|other| *other == request)
    }

    /// The request with this tag and the connection of its call, if it is not in the log yet.
    pub(crate) fn tagged(
        &mut self,
        tag: Tag,
    ) -> Option<(Ticket, &mut ConnId, &mut PendingAcquire)> {
        let ticket = *self.tags.get(&tag)?;
        let at = self.at(ticket)?;
        match &mut self.each.get_mut(at)?.1.then {
            Completion::Call(id, PendingCall::Ask(newcomer)) => Some((ticket, id, newcomer)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::pending_acquire::plain_request;
    use canal_core::{HostId, LeaseId, Owner};
    use std::sync::Arc;

    fn newcomer(tag: u128, uid: u32, wait: Wait) -> Completion {
        let owner = Owner::Lease(LeaseId(tag));
        let plain = plain_request(Tag(tag), HostId(1), (owner, uid), Vec::new());
        let request = Request { wait, ..plain };
        let newcomer = PendingAcquire::again(Arc::new(request), false, None);
        Completion::Call(ConnId::default(), PendingCall::Ask(newcomer))
    }

    #[test]
    fn requests_in_flight_that_may_wait_count_towards_their_users_limit() {
        let mut in_flight = InFlight::default();
        let waits = Wait::Yes { until: None };
        for (ticket, (uid, wait)) in
            [(7, waits), (7, Wait::No), (7, waits), (8, waits)].into_iter().enumerate()
        {
            in_flight.add(Ticket(ticket as u64), newcomer(ticket as u128, uid, wait));
        }
        assert_eq!([7, 8, 9].map(|uid| in_flight.of_user(uid)), [2, 1, 0]);
        for ticket in 0..4 {
            in_flight.take(Ticket(ticket));
        }
        assert_eq!([7, 8].map(|uid| in_flight.of_user(uid)), [0, 0]);
        assert!(in_flight.users.is_empty());
    }
}
