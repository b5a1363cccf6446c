//! Changes of this host that the log has not returned yet, and the calls that wait for them.
//!
//! Invariant: if the client has left or has received a failure, canal never grants it the request.
//! Such a request is abandoned, and released as soon as it comes out of the log.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use crate::core::{RequestId, Tag, Wait};
use crate::daemon::calls::completion::Completion;
use crate::daemon::calls::conn_id::ConnId;
use crate::daemon::calls::pending_acquire::{Patience, PendingAcquire};
use crate::host::Ticket;
use crate::sys::clock;

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
    leaving: BTreeSet<RequestId>,
    /// Requests that are being suspended. A suspension revokes a grant that precedes it in the log.
    suspending: BTreeMap<Ticket, RequestId>,
    /// The connections whose call waits for the log.
    pending: BTreeMap<ConnId, LogWait>,
    /// Requests to propose as soon as this host is a member.
    awaiting_membership: Vec<PendingAcquire>,
}

/// A change that is not in the log yet.
#[derive(Debug)]
pub(crate) struct Proposed {
    pub(crate) then: Completion,
    /// Whether the client left, or received a failure.
    pub(crate) abandoned: bool,
    /// When it was proposed.
    pub(crate) since: Instant,
}

/// A call that waits for the log.
#[derive(Debug)]
pub(crate) struct LogWait {
    pub(crate) what: Awaiting,
    /// Since when, in milliseconds of CLOCK_BOOTTIME.
    pub(crate) since: u64,
    /// The reports for the client of a request that may wait.
    pub(crate) patience: Option<Patience>,
}

/// The event that a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaiting {
    /// The membership of this host, or a read of the log. The call is still the first in the queue
    /// of its connection.
    Membership,
    /// The membership of this host, for a request that has already left the queue.
    MembershipOf(Tag),
    /// The call's request, until it comes out of the log.
    Request(Ticket),
    /// Another change, until it comes out of the log.
    Change(Ticket),
}

impl Awaiting {
    fn ticket(self) -> Option<Ticket> {
        match self {
            Self::Request(ticket) | Self::Change(ticket) => Some(ticket),
            Self::Membership | Self::MembershipOf(_) => None,
        }
    }
}

impl InFlight {
    pub(crate) fn add(&mut self, ticket: Ticket, then: Completion) {
        if let Completion::Ask(newcomer) = &then {
            self.tags.insert(newcomer.request.tag, ticket);
            if newcomer.request.wait != Wait::No {
                *self.users.entry(newcomer.request.uid).or_default() += 1;
            }
        }
        let proposed = Proposed { then, abandoned: false, since: clock::now() };
        self.each.push_back((ticket, proposed));
    }

    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<Proposed> {
        let (_, proposed) = self.each.remove(self.at(ticket)?)?;
        self.suspending.remove(&ticket);
        if let Completion::Ask(newcomer) = &proposed.then
            && newcomer.request.wait != Wait::No
            && let Entry::Occupied(mut count) = self.users.entry(newcomer.request.uid)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        if let Completion::Ask(newcomer) = &proposed.then
            && self.tags.get(&newcomer.request.tag) == Some(&ticket)
        {
            self.tags.remove(&newcomer.request.tag);
        }
        if let Some(id) = proposed.then.conn()
            && self.pending.get(&id).and_then(|pending| pending.what.ticket()) == Some(ticket)
        {
            self.pending.remove(&id);
        }
        Some(proposed)
    }

    fn at(&self, ticket: Ticket) -> Option<usize> {
        self.each.binary_search_by_key(&ticket, |(ticket, _)| *ticket).ok()
    }

    fn get(&self, ticket: Ticket) -> Option<&Proposed> {
        self.each.get(self.at(ticket)?).map(|(_, proposed)| proposed)
    }

    fn get_mut(&mut self, ticket: Ticket) -> Option<&mut Proposed> {
        let at = self.at(ticket)?;
        self.each.get_mut(at).map(|(_, proposed)| proposed)
    }

    /// How many requests of a user are in flight and may have to wait.
    pub(crate) fn of_user(&self, uid: u32) -> usize {
        self.users.get(&uid).copied().unwrap_or(0)
    }

    pub(crate) fn len(&self) -> usize {
        self.each.len()
    }

    /// Whether this change only produces an answer and leaves the table as it is.
    pub(crate) fn is_question(&self, what: Awaiting) -> bool {
        let proposed = what.ticket().and_then(|ticket| self.get(ticket));
        proposed.is_some_and(|it| matches!(it.then, Completion::Question(_)))
    }

    /// Notes that a request is being withdrawn.
    pub(crate) fn withdraw(&mut self, request: RequestId) {
        self.leaving.insert(request);
    }

    /// Notes that the withdrawal of a request came out of the log.
    pub(crate) fn withdrawn(&mut self, request: RequestId) {
        self.leaving.remove(&request);
    }

    /// Whether a request is being withdrawn.
    pub(crate) fn is_leaving(&self, request: RequestId) -> bool {
        self.leaving.contains(&request)
    }

    /// Notes that a request is being suspended by this change.
    pub(crate) fn suspend(&mut self, ticket: Ticket, request: RequestId) {
        self.suspending.insert(ticket, request);
    }

    /// Whether a request is being suspended.
    pub(crate) fn is_being_suspended(&self, request: RequestId) -> bool {
        self.suspending.values().any(|other| *other == request)
    }

    /// Forgets the withdrawals, because the membership that they belong to is lost.
    pub(crate) fn forget_withdrawals(&mut self) {
        self.leaving.clear();
    }

    /// Notes what the call of a connection waits for.
    pub(crate) fn begin_wait(&mut self, id: ConnId, wait: LogWait) {
        self.pending.insert(id, wait);
    }

    /// Notes that the call of a connection no longer waits. Returns what it waited for.
    pub(crate) fn end_wait(&mut self, id: ConnId) -> Option<LogWait> {
        self.pending.remove(&id)
    }

    /// The event that the call of a connection waits for, if it waits.
    pub(crate) fn wait_of(&self, id: ConnId) -> Option<&LogWait> {
        self.pending.get(&id)
    }

    /// As [`Self::wait_of`], but mutable, to record what the client has received.
    pub(crate) fn wait_of_mut(&mut self, id: ConnId) -> Option<&mut LogWait> {
        self.pending.get_mut(&id)
    }

    /// The calls that wait.
    pub(crate) fn waits(&self) -> impl Iterator<Item = (ConnId, &LogWait)> {
        self.pending.iter().map(|(id, wait)| (*id, wait))
    }

    /// Makes a request wait until this host is a member.
    pub(crate) fn await_membership(&mut self, newcomer: PendingAcquire) {
        self.awaiting_membership.push(newcomer);
    }

    /// Takes the requests that waited for this host to become a member.
    pub(crate) fn take_awaiting_membership(&mut self) -> Vec<PendingAcquire> {
        let newcomers = std::mem::take(&mut self.awaiting_membership);
        for newcomer in &newcomers {
            self.pending.remove(&newcomer.conn);
        }
        newcomers
    }

    /// Takes the connections whose next call waited for this host to become a member.
    pub(crate) fn take_put_off(&mut self) -> Vec<ConnId> {
        let put_off = |pending: &LogWait| pending.what == Awaiting::Membership;
        let ids = self.pending.iter().filter(|(_, it)| put_off(it)).map(|(id, _)| *id).collect();
        self.pending.retain(|_, pending| !put_off(pending));
        ids
    }

    /// Notes that no client waits for this any longer.
    pub(crate) fn abandon(&mut self, what: Awaiting) {
        match what {
            Awaiting::Membership => {}
            Awaiting::MembershipOf(tag) => {
                self.awaiting_membership.retain(|newcomer| newcomer.request.tag != tag);
            }
            Awaiting::Request(ticket) | Awaiting::Change(ticket) => {
                if let Some(proposed) = self.get_mut(ticket) {
                    proposed.abandoned = true;
                }
            }
        }
    }

    /// Notes that a client waits for this again.
    pub(crate) fn take_back(&mut self, what: Awaiting) {
        if let Awaiting::Request(ticket) = what
            && let Some(proposed) = self.get_mut(ticket)
        {
            proposed.abandoned = false;
        }
    }

    /// The request with this tag, if it is not in the log yet.
    pub(crate) fn tagged(&mut self, tag: Tag) -> Option<(Awaiting, &mut PendingAcquire)> {
        if let Some(ticket) = self.tags.get(&tag).copied() {
            let Completion::Ask(newcomer) = &mut self.get_mut(ticket)?.then else { return None };
            return Some((Awaiting::Request(ticket), newcomer));
        }
        let mut awaiting_membership = self.awaiting_membership.iter_mut();
        awaiting_membership
            .find(|it| it.request.tag == tag)
            .map(|newcomer| (Awaiting::MembershipOf(tag), newcomer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{Command, HostId, LeaseId, Owner, Request};
    use crate::daemon::calls::conn_id::ConnId;
    use std::sync::Arc;

    fn newcomer(tag: u128, uid: u32, wait: Wait) -> Completion {
        let request = Request {
            tag: Tag(tag),
            host: HostId(1),
            owner: Owner::Lease(LeaseId(tag)),
            parent: None,
            uid,
            command: Command::default(),
            note: None,
            items: Vec::new(),
            wait,
            priority: 0,
            max_waiting: None,
            supersede: None,
            max_run_ms: None,
            provisional: false,
            children: false,
            ttl_ms: None,
            on_lost: Default::default(),
            asker: None,
            over_nodes: None,
            above: None,
        };
        Completion::Ask(PendingAcquire::again(ConnId::default(), Arc::new(request), false, None))
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
        // A request whose client has left still comes out of the log.
        in_flight.abandon(Awaiting::Request(Ticket(0)));
        assert_eq!(in_flight.of_user(7), 2);
        for ticket in 0..4 {
            in_flight.take(Ticket(ticket));
        }
        assert_eq!([7, 8].map(|uid| in_flight.of_user(uid)), [0, 0]);
        assert!(in_flight.users.is_empty());
    }
}
