//! The member: a state machine that takes answers, time and proposals, and returns calls and
//! events.
//!
//! Invariant: it acts only by calls to the engine and events for its driver.

mod attention;
mod follow;
mod join;
mod lifecycle;
mod recover;
mod renew;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::host::chain::Chain;
use crate::host::failure_detector::FailureDetector;
use crate::host::incarnation::Incarnation;
use crate::host::memory::{Memory, Recovering};
use crate::host::settings::too_short;
use crate::host::snapshot_keeper::SnapshotKeeper;
use crate::host::writer::Writer;
use crate::host::{Deadlines, Event, Health, LostWhy, Now, Settings, Standing, Ticket};
use attention::Attention;
use canal_core::{Change, HostId, Snapshot, UnixMillis};
use canal_log::engine::{Answer, Call, Identity, Outage, Position};

/// One host's part in the log of many.
#[derive(Debug)]
pub(crate) struct Member {
    pub(in crate::host) settings: Settings,
    pub(in crate::host) identity: Identity,
    nonce: u128,
    pub(in crate::host) now: Now,
    pub(in crate::host) calls: VecDeque<Call>,
    pub(in crate::host) events: VecDeque<Event>,
    tickets: u64,
    pub(in crate::host) standing: Standing,
    /// Whether the connection to the engine is cut.
    pub(in crate::host) cut: bool,
    /// Why the engine cannot be used, until it answers again.
    pub(in crate::host) outage: Option<Outage>,
    /// Why this host cannot take part although the engine answers.
    pub(in crate::host) obstacle: Option<Outage>,
    /// How many incarnations in a row met an obstacle.
    setbacks: u32,
    /// The incarnation that is being withdrawn. Its obstacle is reported after that.
    withdrawing: Option<HostId>,
    /// The number of incarnations requested.
    attempt: u64,
    /// When the current one was first requested. This host counts its TTL from this time.
    pub(in crate::host) registering_ms: u64,
    /// When to request it, or to repeat the request.
    pub(in crate::host) register: Option<u64>,
    pub(in crate::host) incarnation: Option<Incarnation>,
    /// The part of the log that was read; `None` during the first load.
    pub(in crate::host) chain: Option<Chain>,
    pub(in crate::host) writer: Writer,
    /// What the engine announces to this host.
    attention: Attention,
    pub(in crate::host) failure_detector: FailureDetector,
    pub(in crate::host) snapshot_keeper: SnapshotKeeper,
    /// Since when the engine has no record of incarnations that have not ended.
    unknown_since: BTreeMap<HostId, u64>,
    /// The longest TTL in the table.
    longest_ttl_ms: u64,
    /// The incarnation that has this host's label, if that is the obstacle.
    label_taken_by: Option<HostId>,
    /// The nonces of the incarnations that this host has given up. Their numbers may be those of
    /// other hosts after the engine has lost history.
    pub(in crate::host) lost: BTreeSet<u128>,
    /// The boots of this machine in which daemons of this place have been members.
    boots: Vec<String>,
    pub(in crate::host) deadlines: Deadlines,
    /// Whether this host's own end is in flight, because it leaves.
    pub(in crate::host) leaving: bool,
    /// The memory that outlives an incarnation.
    pub(in crate::host) memory: Memory,
    pub(in crate::host) recovering: Option<Recovering>,
}

impl Member {
    /// A member that has not been started. `nonce` is random.
    #[must_use]
    pub(crate) fn new(settings: Settings, identity: Identity, nonce: u128) -> Self {
        Self {
            settings,
            identity,
            nonce,
            now: Now { boot_ms: 0, unix: UnixMillis(0) },
            calls: VecDeque::new(),
            events: VecDeque::new(),
            tickets: 0,
            standing: Standing::Idle,
            cut: false,
            outage: None,
            obstacle: None,
            setbacks: 0,
            withdrawing: None,
            attempt: 0,
            registering_ms: 0,
            register: None,
            incarnation: None,
            chain: None,
            writer: Writer::default(),
            attention: Attention::default(),
            failure_detector: FailureDetector::default(),
            snapshot_keeper: SnapshotKeeper::default(),
            unknown_since: BTreeMap::new(),
            longest_ttl_ms: 0,
            label_taken_by: None,
            lost: BTreeSet::new(),
            boots: Vec::new(),
            deadlines: Deadlines::default(),
            leaving: false,
            memory: Memory::default(),
            recovering: None,
        }
    }

    /// Takes over the number of the directory from the records of this place.
    pub(crate) fn remember_dir(&mut self, number: u64) {
        self.identity.dir_number = number;
    }

    /// Takes over, from the records of this place, the boots in which its daemons have been
    /// members.
    pub(crate) fn remember_boots(&mut self, boots: Vec<String>) {
        self.boots = boots;
    }

    /// The incarnation that has this host's label, if that keeps this host from joining.
    #[must_use]
    pub(crate) fn label_taken_by(&self) -> Option<HostId> {
        self.label_taken_by
    }

    /// Begins to join. Call it once.
    pub(crate) fn start(&mut self, now: Now) {
        self.now = now;
        match self.settings.check(self.settings.ttl_ms) {
            Ok(_) => self.register_at(now.boot_ms),
            // No call was sent to the engine, and none will be.
            Err(error) => self.events.push_back(Event::Hindered(too_short(error.to_string()))),
        }
        self.on_time();
    }

    /// Proposes a change. Its ticket returns with an [`Event::Entry`], an [`Event::Absorbed`] or an
    /// [`Event::Dropped`]; the last one comes at once while the host is not a member.
    pub(crate) fn propose(&mut self, change: Change, at: UnixMillis) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        if self.standing == Standing::Member && !self.leaving {
            self.writer.push(change, at, Some(ticket));
        } else {
            self.events.push_back(Event::Dropped { ticket });
        }
        ticket
    }

    /// The calls to send to the engine now. Take them at the end of each turn, so that all
    /// proposals of the turn go out together.
    pub(crate) fn take_calls(&mut self) -> Vec<Call> {
        self.append_next();
        self.attend_next();
        self.calls.drain(..).collect()
    }

    /// Processes an answer of the engine.
    pub(crate) fn answer(&mut self, now: Now, answer: Answer) {
        self.now = now;
        // First, so that a late answer does not count as one in time.
        self.on_time();
        match &answer {
            Answer::Away(_) | Answer::Back | Answer::Full(_) => {}
            _ => self.hear(),
        }
        match answer {
            Answer::Registered { host, ttl_ms, asked_at, epoch, others } => {
                self.registered((host, ttl_ms), asked_at, epoch, others);
            }
            Answer::Withdrawn { host } => self.withdrawn(host),
            Answer::Loaded { snapshot, batches } => self.loaded(snapshot, &batches),
            Answer::Batches(batches) => self.batches(&batches),
            Answer::Rewritten => self.rewritten(),
            Answer::Compacted => self.reload(),
            Answer::Appended { host, sequence, .. } => {
                if self.is_us(host) {
                    self.writer.answered(sequence);
                }
            }
            Answer::Overtaken { host, sequence, ends } => {
                if self.is_us(host) {
                    self.overtaken(sequence, ends);
                }
            }
            Answer::Fenced { host, why } => {
                if self.is_us(host) {
                    self.lose(LostWhy::Fenced { why });
                }
            }
            Answer::Renewed { asked_at, ttl_ms, head, hosts } => {
                self.renewed((asked_at, ttl_ms), head, &hosts);
            }
            Answer::NewEra(begun) => self.note_era(begun),
            Answer::Stored { position } => self.stored(position),
            Answer::Attends { listens } => self.attends(listens),
            Answer::Away(outage) => self.gone_away(outage),
            Answer::Back => self.come_back(),
            Answer::Full(full) => self.events.push_back(Event::Full(full)),
        }
        self.on_time();
    }

    /// Handles the passage of time.
    pub(crate) fn tick(&mut self, now: Now) {
        self.now = now;
        self.on_time();
    }

    /// The next task for the driver.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        self.attention.has_read |= matches!(event, Some(Event::Present));
        event
    }

    /// The answer to [`Event::Clear`]: no command of an earlier incarnation lives.
    pub(crate) fn cleared(&mut self, now: Now) {
        self.now = now;
        if self.standing == Standing::Clearing {
            if self.label_was_taken() { self.decide_how_to_join() } else { self.join(None) }
        }
        self.on_time();
    }

    /// The answer to [`Event::SnapshotWanted`]: the table as it was at that event.
    pub(crate) fn store(&mut self, snapshot: &Snapshot) {
        let every = self.settings.snapshot_batches;
        match self.snapshot_keeper.take(snapshot, self.now.boot_ms, every) {
            Ok(()) => self.store_due(),
            Err(differs) => self.differs(differs),
        }
    }

    /// How long commands of this host may run. The daemon may report a grant to a client only
    /// before `term_at`. After a loss the deadlines stay those of the lost incarnation until the
    /// host is a member again.
    #[must_use]
    pub(crate) fn deadlines(&self) -> Deadlines {
        self.deadlines
    }

    /// The host's state towards the engine.
    #[must_use]
    pub(crate) fn health(&self) -> Health {
        let incarnation = self.incarnation.as_ref();
        Health {
            standing: self.standing.clone(),
            host: incarnation.map(|incarnation| incarnation.host),
            renewed_ms: incarnation.and_then(|incarnation| incarnation.renewed_ms),
            position: self.read_to(),
            head: incarnation.map_or(Position(0), |incarnation| incarnation.head),
            hosts: self.failure_detector.seen().copied().collect(),
            heard: self.failure_detector.heard().clone(),
        }
    }
}
