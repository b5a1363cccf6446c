//! The queue of proposals, and the one batch in flight.

use std::collections::VecDeque;

use super::{Now, Ticket};
use canal_core::{Change, ENTRY_VERSION, Entry, HostId, UnixMillis};
use canal_log::engine::encoding::json;
use canal_log::engine::{Append, Batch, Ends, Link, Placed};

/// The most entries in a batch.
pub(super) const ENTRIES_MAX: usize = 1024;
/// About the most bytes in a batch: etcd accepts 1.5 MiB at once. A single entry could be larger,
/// but none is: a call has at most 64 KiB, which makes an entry of less than 256 KiB.
pub(super) const BYTES_MAX: usize = 512 * 1024;

/// A change to append, and the proposal that it comes from.
type Proposal = (Entry, Option<Ticket>);

/// A batch that was sent and is not confirmed.
#[derive(Clone, Debug)]
pub(super) struct InFlightBatch {
    pub(super) append: Append,
    tickets: Vec<Option<Ticket>>,
    /// When it was last sent; `None`: send it at once.
    pub(super) asked_ms: Option<u64>,
    /// Whether the engine has acknowledged it, or will no longer answer.
    pub(super) answered: bool,
    /// Whether this host has read it in the log.
    pub(super) echoed: bool,
}

/// The queue of one incarnation.
#[derive(Debug, Default)]
pub(super) struct Writer {
    /// The number of the last batch known to be in the log.
    sequence: u64,
    queue: VecDeque<Proposal>,
    ends: VecDeque<Ends>,
    pub(super) in_flight: Option<InFlightBatch>,
}

pub(super) fn entry(change: Change, at: UnixMillis) -> Entry {
    Entry { version: ENTRY_VERSION, at, change }
}

impl Writer {
    pub(super) fn push(&mut self, change: Change, at: UnixMillis, ticket: Option<Ticket>) {
        self.queue.push_back((entry(change, at), ticket));
    }

    /// Queues the end of an incarnation, unless its end is queued or in flight. It is appended
    /// before proposals, in a separate batch: if its evidence does not hold, no proposal is refused
    /// with it.
    pub(super) fn push_end(&mut self, ends: Ends) {
        let in_flight = self.in_flight.as_ref().and_then(|in_flight| in_flight.append.ends);
        if self.ends.iter().chain(&in_flight).all(|other| other.host != ends.host) {
            self.ends.push_back(ends);
        }
    }

    /// Whether nothing is queued or in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_none() && self.queue.is_empty() && self.ends.is_empty()
    }

    /// The next batch, if something is queued and nothing is in flight.
    pub(super) fn next(&mut self, host: HostId, seen: Link, now: Now) -> Option<Append> {
        if self.in_flight.is_some() {
            return None;
        }
        if let Some(ends) = self.ends.pop_front() {
            let gone = entry(Change::HostGone { host: ends.host, by: host }, now.unix);
            return Some(self.send(host, vec![(gone, None)], Some(ends), (seen, now.boot_ms)));
        }
        let mut bytes = 0;
        let fits = |(entry, _): &&Proposal| {
            bytes += json(entry).len() + 1;
            bytes <= BYTES_MAX
        };
        let fitting = self.queue.iter().take(ENTRIES_MAX).take_while(fits).count();
        // A batch has at least one entry.
        let count = fitting.max(1).min(self.queue.len());
        let proposals: Vec<Proposal> = self.queue.drain(..count).collect();
        (count > 0).then(|| self.send(host, proposals, None, (seen, now.boot_ms)))
    }

    /// Makes a batch of these entries the one in flight. There must be none yet.
    pub(super) fn send(
        &mut self,
        host: HostId,
        proposals: Vec<Proposal>,
        ends: Option<Ends>,
        (seen, asked_ms): (Link, u64),
    ) -> Append {
        let sequence = self.sequence + 1;
        let (entries, tickets) = proposals.into_iter().unzip();
        let body = Batch { host, sequence, seen, entries }.encode();
        let append = Append { host, sequence, body, ends };
        self.in_flight = Some(InFlightBatch {
            append: append.clone(),
            tickets,
            asked_ms: Some(asked_ms),
            answered: false,
            echoed: false,
        });
        append
    }

    /// Records that the batch in flight was read in the log, or is known to be there. Returns its
    /// tickets.
    pub(super) fn confirmed(&mut self, sequence: u64) -> Vec<Option<Ticket>> {
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

    /// Whether a batch read under this host's name differs from the one that it sent.
    pub(super) fn is_foreign(&self, read: &Placed) -> bool {
        let sent = self.in_flight.as_ref().map(|in_flight| &in_flight.append);
        sent.is_some_and(|sent| sent.sequence == read.sequence && sent.body != read.body)
    }

    /// Records that the engine acknowledged a batch, or will no longer acknowledge it.
    pub(super) fn answered(&mut self, sequence: u64) {
        if let Some(in_flight) = &mut self.in_flight
            && in_flight.append.sequence == sequence
        {
            in_flight.answered = true;
        }
        self.arrive();
    }

    /// Records that the calls sent so far will no longer be answered.
    pub(super) fn unanswered(&mut self) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.answered |= in_flight.echoed;
        }
        self.arrive();
    }

    fn arrive(&mut self) {
        self.in_flight.take_if(|in_flight| in_flight.answered && in_flight.echoed);
    }

    /// Handles the refusal of a batch because the evidence for an end does not hold, and never
    /// will. Returns that end, if it is in the batch in flight. The second answer to a repeated
    /// call may arrive when another batch has the number.
    pub(super) fn overtaken(&mut self, sequence: u64, ends: Option<Ends>) -> Option<Ends> {
        let refused = |in_flight: &mut InFlightBatch| {
            let same = (in_flight.append.sequence, in_flight.append.ends) == (sequence, ends);
            same && !in_flight.echoed && ends.is_some()
        };
        self.in_flight.take_if(refused)?.append.ends
    }

    /// The tickets of everything that is not in the log.
    pub(super) fn give_up(self) -> impl Iterator<Item = Ticket> {
        let in_flight = self.in_flight.into_iter().flat_map(|in_flight| in_flight.tickets);
        let queued = self.queue.into_iter().map(|(_, ticket)| ticket);
        in_flight.chain(queued).flatten()
    }
}
