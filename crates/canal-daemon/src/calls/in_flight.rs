//! Changes of this host that the log has not returned yet, and the work that follows once it has.
//!
//! Invariant: each change comes back once. The call that waits for it names its ticket. If no call
//! does, because the client has left or has received a failure, canal grants it nothing: a request
//! is released as soon as it comes out of the log.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use crate::calls::call::ConnId;
use crate::calls::pending_acquire::PendingAcquire;
use crate::host::Ticket;
use canal_core::{
    Change, FrameId, Key, LeaseId, Outcome, Release as Giving, Request, RequestId, Revision, Table,
    Tag, Wait,
};
use canal_sys::clock;
use canal_sys::peer::Credentials;

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

/// The change of a question: it has no effect, and only takes a place in the log. The embedded
/// journal does not record it.
pub(crate) const VOID: Change = Change::Confirm { request: RequestId(0) };

/// The work to do when a change of this host has been applied.
#[derive(Debug)]
pub(crate) enum Completion {
    /// Only the work that changes of other hosts need, too.
    Nothing,
    /// A call of this connection continues.
    Call(ConnId, PendingCall),
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
    /// The process of a frame has ended.
    End {
        /// The frame of that process.
        frame: FrameId,
    },
}

impl Completion {
    /// The connection whose call waits for the completion.
    pub(crate) fn conn(&self) -> Option<ConnId> {
        if let Self::Call(id, _) = self { Some(*id) } else { None }
    }
}

/// A call whose change is on its way to the table.
#[derive(Debug)]
pub(crate) enum PendingCall {
    /// The client asked for a lock.
    Ask(PendingAcquire),
    /// The client asked what it would be granted. The change itself does nothing.
    Question(Box<PendingAcquire>),
    /// The client released something.
    Release(PendingRelease),
    /// The client renewed a lease.
    Renew(PendingRenewal),
    /// The client stored a size of this key, or paused or resumed it.
    Resize(Key),
    /// The client changed the priority of a session that waits.
    Prioritize(PendingPriority),
    /// The client confirmed that it reported the grant of this request to the owner.
    Confirm(RequestId),
    /// The client confirmed this part of a request over nodes.
    ConfirmAt(RequestId),
}

/// A change that was applied.
#[derive(Debug)]
pub(crate) struct Applied {
    /// Its position in the log.
    pub revision: Revision,
    /// Its results.
    pub outcomes: Vec<Outcome>,
}

/// A release on its way to the table.
#[derive(Debug)]
pub(crate) struct PendingRelease {
    pub peer: Credentials,
    pub giving: Giving,
}

/// A renewal on its way to the table.
#[derive(Debug)]
pub(crate) struct PendingRenewal {
    pub peer: Credentials,
    pub lease: LeaseId,
    /// Whether the daemon releases the lease afterwards. It renews the lease only to find it in the
    /// log.
    pub give_back: bool,
    /// Whether the new TTL must be durable before the reply.
    pub keeps_ttl: bool,
}

impl PendingRenewal {
    /// The outcome of a renewal that this host did not see, derived from a later table. A lease
    /// that lives now has lived ever since the client asked for the renewal, so the renewal
    /// succeeded. A lease that does not live now is lost in any case.
    pub(crate) fn unseen(&self, table: &Table) -> Vec<Outcome> {
        let frame = table.lease(self.lease).and_then(|frame| table.frame(frame));
        let holding = frame.filter(|frame| table.holds_in(frame.id).next().is_some());
        let renewed = holding.and_then(|frame| {
            Some(Outcome::Renewed { frame: frame.id, renewal: frame.lease?.renewals })
        });
        vec![renewed.unwrap_or(Outcome::LeaseGone)]
    }
}

/// A change of priority on its way to the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingPriority {
    pub request: RequestId,
    pub before: i32,
    pub priority: i32,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::calls::pending_acquire::plain_request;
    use canal_core::{HostId, LeaseId, Owner};

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
