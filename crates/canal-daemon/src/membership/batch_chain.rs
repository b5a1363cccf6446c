//! The chain: the state of every reader of the log after a batch. It records how far the reader is,
//! and determines which batches count.
//!
//! Invariant: the chain is a function of the batches read, the same for all readers, whether they
//! read all batches or began at a snapshot.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use canal_core::{Change, Entry, HostId, Revision};
use canal_log::engine::{Batch, Hash, Link, NO_HOST, Placed, Position, Read};

/// The number of links to keep, for comparison with other chains.
pub(super) const RECENT_MAX: usize = 1024;

/// The state of a reader after a batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Chain {
    genesis: Hash,
    /// The link of the last batch.
    pub(super) link: Link,
    /// The last links, latest last. Eight bytes of each hash are enough to distinguish histories.
    recent: VecDeque<(Position, u64)>,
    pub(super) revision: Revision,
    /// The number of batches read.
    pub(super) batches: u64,
    pub(super) last: Option<Read>,
    /// The incarnations that have joined and not ended.
    pub(super) seats: BTreeMap<HostId, Seat>,
    /// The last era of the engine that a batch noted.
    #[serde(default)]
    era: u64,
}

/// An incarnation that has joined and not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seat {
    /// Its last batch.
    pub(super) sequence: u64,
    /// The revision of the first entry of that batch.
    pub(super) first: Revision,
}

/// The effect of a batch.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// The reader has already read it.
    Known,
    /// It does not count: its incarnation had ended.
    Void,
    /// It does not count: its author had read another history. Otherwise, one such batch would cost
    /// all other hosts their locks. But while the log is followed live, it may also be this host
    /// that read another history: then the chain is unchanged.
    Divergent,
    /// Its entries count; the first of them has this revision.
    Counts { first: Revision, entries: Vec<Entry> },
}

/// A batch that a reader cannot process. The chain is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Trouble {
    /// A batch before it is missing, or its number is used twice.
    #[error("the log in the engine is inconsistent: {0}")]
    Gap(String),
    /// This version cannot read it.
    #[error("cannot read the log in the engine: {0}")]
    Unreadable(String),
}

/// A position in a history, short enough to store with each grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) position: Position,
    hash: u64,
}

/// Whether a position belongs to a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// It belongs to this history.
    Same,
    /// It belongs to another history.
    Other,
    /// It is too old to tell.
    TooOld,
}

/// The reason to trust that the batches read are those of the engine now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// They continue the batches read before.
    Live,
    /// They were just read from the beginning of the log, or from its snapshot.
    Loaded,
}

/// The first link of a history.
pub(super) fn genesis(epoch: u128) -> Link {
    let hash = Hash::of(&[&b"canal"[..], &epoch.to_be_bytes()].concat());
    Link { position: Position(0), hash }
}

/// The name, for messages, of the author of an unreadable batch.
fn author(host: HostId, sequence: u64) -> String {
    format!("batch {sequence} of host {host}")
}

fn short(hash: Hash) -> u64 {
    hash.0.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Chain {
    pub(super) fn new(epoch: u128) -> Self {
        let genesis = genesis(epoch);
        Self { genesis: genesis.hash, link: genesis, ..Self::default() }
    }

    pub(super) fn is_of(&self, epoch: u128) -> bool {
        self.genesis == genesis(epoch).hash
    }

    /// How far this history was read.
    pub(super) fn mark(&self) -> Mark {
        Mark { position: self.link.position, hash: short(self.link.hash) }
    }

    /// Whether a link belongs to this history.
    pub(super) fn knows(&self, link: Link) -> Known {
        self.knows_mark(Mark { position: link.position, hash: short(link.hash) })
    }

    /// Whether a mark belongs to this history.
    pub(super) fn knows_mark(&self, mark: Mark) -> Known {
        #[cfg(test)]
        if crate::sim::is_broken(crate::sim::Rule::HistoriesAreCompared) {
            return Known::Same;
        }
        let same = |same: bool| if same { Known::Same } else { Known::Other };
        if mark.position == Position(0) {
            return same(mark.hash == short(self.genesis));
        }
        match self.recent.binary_search_by_key(&mark.position, |(position, _)| *position) {
            Ok(at) => same(self.recent[at].1 == mark.hash),
            Err(0) if self.batches > self.recent.len() as u64 => Known::TooOld,
            Err(_) => Known::Other,
        }
    }

    /// Whether the batches read certainly contradict a mark, however far they were read.
    pub(super) fn contradicts(&self, mark: Mark) -> bool {
        mark.position <= self.link.position && self.knows_mark(mark) == Known::Other
    }

    /// Reads the next batch.
    pub(super) fn read(&mut self, placed: &Placed, trust: Trust) -> Result<Step, Trouble> {
        if placed.position <= self.link.position {
            return Ok(Step::Known);
        }
        let step = self.judge(placed, trust)?;
        if step == Step::Divergent && trust == Trust::Live {
            return Ok(step);
        }
        let read = placed.read();
        let Read { position, body, .. } = read;
        let hash = [&self.link.hash.0[..], &position.0.to_be_bytes(), &body.0].concat();
        self.link = Link { position, hash: Hash::of(&hash) };
        self.last = Some(read);
        self.batches += 1;
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back((placed.position, short(self.link.hash)));
        let Placed { host, sequence, .. } = *placed;
        let seat = Seat { sequence, first: self.next_revision() };
        match &step {
            Step::Counts { entries, .. } => {
                if host == NO_HOST {
                    self.era = sequence;
                } else {
                    self.seats.insert(host, seat);
                }
                self.revision.0 += entries.len() as u64;
                for entry in entries {
                    if let Change::HostGone { host: ended, .. }
                    | Change::HostAdopt { old: ended, .. } = &entry.change
                    {
                        self.seats.remove(ended);
                    }
                }
            }
            Step::Divergent => {
                self.seats.entry(host).and_modify(|it| *it = seat);
            }
            Step::Void | Step::Known => {}
        }
        Ok(step)
    }

    /// The effect of the next batch.
    fn judge(&self, placed: &Placed, trust: Trust) -> Result<Step, Trouble> {
        let Placed { host, sequence, .. } = *placed;
        if host == NO_HOST {
            return self.judge_era(placed);
        }
        let expected = match self.seats.get(&host) {
            Some(seat) => seat.sequence + 1,
            None if sequence == 1 => 1,
            None => {
                // A reader that has missed the join of a host would ignore all its batches.
                let is_divergent = trust == Trust::Live
                    && batch_of(placed).is_ok_and(|it| self.knows(it.seen) == Known::Other);
                return Ok(if is_divergent { Step::Divergent } else { Step::Void });
            }
        };
        let name = author(host, sequence);
        if sequence != expected {
            let what = format!("{name} follows, but batch {expected} of that host is missing");
            return Err(Trouble::Gap(what));
        }
        let batch = batch_of(placed)?;
        let joins = |it: &Entry| matches!(it.change, Change::HostJoin { host: h, .. } if h == host);
        if sequence == 1 && !batch.entries.first().is_some_and(joins) {
            let what = "the first batch of a host must begin with its join, and this one does not";
            return Err(Trouble::Unreadable(format!("{name}: {what}")));
        }
        if self.knows(batch.seen) == Known::Other {
            return Ok(Step::Divergent);
        }
        Ok(Step::Counts { first: self.next_revision(), entries: batch.entries })
    }

    /// The effect of a batch that notes an era. The engine accepts one batch for each number, and
    /// its author need not have read anything.
    fn judge_era(&self, placed: &Placed) -> Result<Step, Trouble> {
        let sequence = placed.sequence;
        if sequence <= self.era {
            return Ok(Step::Void);
        }
        let entries = batch_of(placed)?.entries;
        let notes = |entry: &Entry| matches!(entry.change, Change::Era { number, .. } if number == sequence);
        if entries.len() != 1 || !entries.iter().all(notes) {
            let what =
                format!("era {sequence}: the batch has more than the entry that begins an era");
            return Err(Trouble::Unreadable(what));
        }
        Ok(Step::Counts { first: self.next_revision(), entries })
    }

    fn next_revision(&self) -> Revision {
        Revision(self.revision.0 + 1)
    }
}

/// The content of a batch, if it is the batch that the engine takes it for.
fn batch_of(placed: &Placed) -> Result<Batch, Trouble> {
    let Placed { host, sequence, .. } = *placed;
    let name = author(host, sequence);
    let unreadable = |what: String| Trouble::Unreadable(format!("{name}: {what}"));
    let batch = Batch::decode(&placed.body).map_err(|error| unreadable(error.to_string()))?;
    if (batch.host, batch.sequence) != (host, sequence) {
        let inside = author(batch.host, batch.sequence);
        return Err(unreadable(format!("it contains {inside}")));
    }
    Ok(batch)
}
