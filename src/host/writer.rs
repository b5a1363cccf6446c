//! What is to be appended, and the one batch that is on its way.

use std::collections::VecDeque;

use super::{Ticket, encoding};
use crate::core::{Change, ENTRY_VERSION, Entry, HostId, Rules, UnixMillis};
use crate::log::engine::{Append, Batch, Ends, Link};

/// A batch has no more entries than this.
pub(in crate::host) const ENTRIES_MAX: usize = 1024;
/// A batch has no more bytes than about this: etcd takes 1.5 MiB at once. A single entry may be
/// larger, but none is: a call has 64 KiB at most, and as an entry less than 256 KiB.
pub(in crate::host) const BYTES_MAX: usize = 512 * 1024;

/// A change that is to be in the log.
#[derive(Clone, Debug)]
struct Proposal {
    entry: Entry,
    ticket: Option<Ticket>,
}

/// The batch that is on its way.
#[derive(Clone, Debug)]
pub(in crate::host) struct InFlightBatch {
    pub(in crate::host) append: Append,
    tickets: Vec<Option<Ticket>>,
    /// When it was asked last; it is to be asked at once if `None`.
    pub(in crate::host) asked_ms: Option<u64>,
    /// Whether the engine has said that it is in the log, or cannot be waited for to say so.
    pub(in crate::host) answered: bool,
    /// Whether it was read.
    pub(in crate::host) echoed: bool,
}

/// What one incarnation appends.
#[derive(Debug, Default)]
pub(in crate::host) struct Writer {
    /// The number of the last batch that is known to be in the log.
    sequence: u64,
    queue: VecDeque<Proposal>,
    ends: VecDeque<Ends>,
    in_flight: Option<InFlightBatch>,
}

pub(in crate::host) fn entry(change: Change, at: UnixMillis) -> Entry {
    Entry { version: ENTRY_VERSION, at, change }
}

impl Writer {
    pub(in crate::host) fn push(&mut self, change: Change, at: UnixMillis, ticket: Option<Ticket>) {
        self.queue.push_back(Proposal { entry: entry(change, at), ticket });
    }

    /// The end of an incarnation goes before what was proposed, in a batch of its own: if its
    /// evidence does not hold, nothing else is refused with it.
    pub(in crate::host) fn push_end(&mut self, ends: Ends) {
        self.ends.push_back(ends);
    }

    /// Whether the end of an incarnation is to be appended or on its way.
    pub(in crate::host) fn is_ending(&self, host: HostId) -> bool {
        let in_flight = self.in_flight.as_ref().and_then(|in_flight| in_flight.append.ends);
        self.ends.iter().chain(&in_flight).any(|ends| ends.host == host)
    }

    /// Whether nothing is on its way or to be appended.
    pub(in crate::host) fn is_idle(&self) -> bool {
        self.in_flight.is_none() && self.queue.is_empty() && self.ends.is_empty()
    }

    pub(in crate::host) fn in_flight(&self) -> Option<&InFlightBatch> {
        self.in_flight.as_ref()
    }

    pub(in crate::host) fn in_flight_mut(&mut self) -> Option<&mut InFlightBatch> {
        self.in_flight.as_mut()
    }

    /// The batch that is to be sent next, if there is something to send and none on its way.
    pub(in crate::host) fn next(
        &mut self,
        host: HostId,
        seen: Link,
        rules: Rules,
        now: (u64, UnixMillis),
    ) -> Option<Append> {
        if self.in_flight.is_some() {
            return None;
        }
        if let Some(ends) = self.ends.pop_front() {
            let gone = entry(Change::HostGone { host: ends.host, by: host }, now.1);
            return Some(self.send(host, vec![gone], Some(ends), vec![None], (seen, rules, now.0)));
        }
        let (mut entries, mut tickets, mut bytes) = (Vec::new(), Vec::new(), 0);
        while let Some(proposal) = self.queue.front() {
            bytes += encoding::size(&proposal.entry);
            let full = entries.len() == ENTRIES_MAX || bytes > BYTES_MAX;
            if full && !entries.is_empty() {
                break;
            }
            if let Some(proposal) = self.queue.pop_front() {
                entries.push(proposal.entry);
                tickets.push(proposal.ticket);
            }
        }
        let something = !entries.is_empty();
        something.then(|| self.send(host, entries, None, tickets, (seen, rules, now.0)))
    }

    /// Sends a batch of these entries; none is on its way.
    pub(in crate::host) fn send(
        &mut self,
        host: HostId,
        entries: Vec<Entry>,
        ends: Option<Ends>,
        tickets: Vec<Option<Ticket>>,
        (seen, rules, asked_ms): (Link, Rules, u64),
    ) -> Append {
        let sequence = self.sequence + 1;
        let batch = Batch { host, sequence, seen, entries };
        let body = encoding::write_batch(rules, &batch);
        let append = Append { host, sequence, body, ends };
        let (answered, echoed) = (false, false);
        let asked_ms = Some(asked_ms);
        let in_flight =
            InFlightBatch { append: append.clone(), tickets, asked_ms, answered, echoed };
        self.in_flight = Some(in_flight);
        append
    }

    /// The batch on its way was read, or is known to be in the log. Its tickets.
    pub(in crate::host) fn confirmed(&mut self, sequence: u64) -> Vec<Option<Ticket>> {
        self.sequence = self.sequence.max(sequence);
        let Some(in_flight) = &mut self.in_flight else { return Vec::new() };
        if in_flight.append.sequence != sequence || in_flight.echoed {
            return Vec::new();
        }
        in_flight.echoed = true;
        let tickets = std::mem::take(&mut in_flight.tickets);
        self.arrive();
        tickets
    }

    /// Whether a batch that was read under our name is not the one that we sent.
    pub(in crate::host) fn is_foreign(&self, sequence: u64, body: &[u8]) -> bool {
        let sent = self.in_flight.as_ref().map(|in_flight| &in_flight.append);
        sent.is_some_and(|sent| sent.sequence == sequence && sent.body != body)
    }

    /// The engine said that a batch is in the log, or will not say it any more.
    pub(in crate::host) fn answered(&mut self, sequence: u64) {
        if let Some(in_flight) = &mut self.in_flight
            && in_flight.append.sequence == sequence
        {
            in_flight.answered = true;
        }
        self.arrive();
    }

    /// Answers to what was asked before do not come any more.
    pub(in crate::host) fn unanswered(&mut self) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.answered |= in_flight.echoed;
        }
        self.arrive();
    }

    fn arrive(&mut self) {
        self.in_flight.take_if(|in_flight| in_flight.answered && in_flight.echoed);
    }

    /// A batch was refused because the evidence for an end does not hold, and never will. Which end
    /// it was, if it is that of the batch on its way: of one that was asked twice, the second
    /// answer comes when another batch has its number.
    pub(in crate::host) fn overtaken(&mut self, sequence: u64, ends: Option<Ends>) -> Option<Ends> {
        let refused = |in_flight: &mut InFlightBatch| {
            let same = (in_flight.append.sequence, in_flight.append.ends) == (sequence, ends);
            same && !in_flight.echoed && ends.is_some()
        };
        self.in_flight.take_if(refused)?.append.ends
    }

    /// All tickets of what is not in the log.
    pub(in crate::host) fn give_up(&mut self) -> Vec<Ticket> {
        let in_flight = self.in_flight.take().into_iter().flat_map(|in_flight| in_flight.tickets);
        let queued = std::mem::take(&mut self.queue).into_iter().map(|proposal| proposal.ticket);
        in_flight.chain(queued).flatten().collect()
    }
}
