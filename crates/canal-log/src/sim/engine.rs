//! An engine in memory.
//!
//! A test can offer its own engine to the daemons of its thread: their configuration then names
//! `simulated://…` as the address.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use crate::engine::era::Era;
use crate::engine::{
    Alive, Answer, Append, Call, Claimant, Engine, Evidence, Hash, Identity, NO_HOST, Placed,
    Position, Read, Registration, Sign, Stored,
};
use canal_core::{HostId, UnixMillis};

/// The scheme of its address.
pub(crate) const SCHEME: &str = "simulated";

type Open = Box<dyn Fn() -> Box<dyn Engine>>;

thread_local! {
    static OFFERED: RefCell<Option<Open>> = const { RefCell::new(None) };
    static SNAPSHOT_BATCHES: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Opens this engine for each daemon that starts on this thread from now on. The daemon makes a
/// snapshot after this many batches.
pub fn offer(snapshot_batches: u64, open: impl Fn() -> Box<dyn Engine> + 'static) {
    OFFERED.set(Some(Box::new(open)));
    SNAPSHOT_BATCHES.set(Some(snapshot_batches));
}

/// Opens the engine that was offered.
pub(crate) fn open() -> Option<Box<dyn Engine>> {
    OFFERED.with_borrow(|open| open.as_ref().map(|open| open()))
}

/// The number of batches between two snapshots, if an engine was offered on this thread.
pub fn snapshot_batches() -> Option<u64> {
    SNAPSHOT_BATCHES.get()
}

/// How it knows which incarnations live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flavour {
    /// Like PostgreSQL: it counts renewals.
    #[default]
    Counting,
    /// Like etcd: it watches leases.
    Watching,
}

/// An incarnation as the engine knows it.
#[derive(Clone, Debug)]
pub struct Incarnation {
    client: usize,
    identity: Identity,
    nonce: u128,
    ttl_ms: u64,
    renewals: u64,
    renewed_ms: u64,
    pub ended: bool,
    /// Whether its last batch has ended it.
    ended_itself: bool,
    last: Option<(u64, Hash, Position)>,
}

/// Events at the engine, so that a test can check that they occurred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Incarnations that other hosts declared gone.
    pub gone: u64,
    /// Incarnations that their host's next one ended, or that left.
    pub succeeded: u64,
    /// Snapshots that were stored.
    pub snapshots: u64,
    /// How many times the log lost its end.
    pub losses: u64,
}

/// The engine.
#[derive(Clone, Debug, Default)]
pub struct Server {
    flavour: Flavour,
    pub epoch: u128,
    pub log: Vec<Placed>,
    pub stored: Option<Stored>,
    /// The last batch that the snapshot covers.
    covered: Option<Read>,
    head: Position,
    pub hosts: BTreeMap<HostId, Incarnation>,
    /// The position up to which each following client has received batches.
    pub cursors: BTreeMap<usize, Position>,
    /// The clients that get batches only after their own calls.
    resting: BTreeSet<usize>,
    /// Skips the check that the batches read are still there.
    pub careless: bool,
    last_host: u64,
    /// Numbers up to this one may have been used twice, because a part of the log was lost.
    lost_hosts: u64,
    /// The era that the log names.
    noted: Option<Era>,
    /// The life of the engine; 0 is one that names no eras.
    incarnation: u64,
    /// Whether batches may be missing since the noted era.
    may_lack: bool,
    /// The wall clock of the host that notes an era.
    pub unix: UnixMillis,
    pub counts: Counts,
}

impl Server {
    pub fn new(flavour: Flavour) -> Self {
        Self { flavour, epoch: 7, ..Self::default() }
    }

    /// Restores an earlier state. Another life begins, in which batches may be missing.
    pub fn fall_back(&mut self, now_ms: u64, earlier: Self, incarnation: u64) {
        let lost_hosts = self.lost_hosts.max(self.last_host);
        let counts = Counts { losses: self.counts.losses + 1, ..self.counts };
        *self = Self { lost_hosts, counts, ..earlier };
        // It is unknown how long each incarnation had left.
        self.hosts.values_mut().for_each(|known| known.renewed_ms = now_ms);
        self.live_anew(incarnation, true);
    }

    /// The position of the last batch.
    pub fn head(&self) -> Position {
        self.head
    }

    /// The incarnation of a client that has not ended.
    pub fn incarnation_of(&self, client: usize) -> Option<HostId> {
        let alive = |known: &Incarnation| known.client == client && !known.ended;
        self.hosts.iter().rfind(|(_, known)| alive(known)).map(|(host, _)| *host)
    }

    /// Another life of the engine begins. All connections are gone.
    pub fn live_anew(&mut self, incarnation: u64, may_lack: bool) {
        self.cursors.clear();
        self.resting.clear();
        self.incarnation = incarnation;
        self.may_lack |= may_lack;
    }

    /// A client loses its connection.
    pub fn disconnect(&mut self, client: usize) {
        self.cursors.remove(&client);
        self.resting.remove(&client);
    }

    pub fn is_in_new_era(&self) -> bool {
        self.incarnation != 0
            && self.noted.as_ref().is_none_or(|noted| noted.sign != self.incarnation.to_string())
    }

    /// Notes the era that begins, as the first host does that connects.
    fn note_era(&mut self, gap: u64) {
        if !self.is_in_new_era() {
            return;
        }
        let may_lack = std::mem::take(&mut self.may_lack);
        let begun = Era::after(self.noted.as_ref(), "", may_lack);
        self.head = Position(self.head.0 + gap);
        let (position, sequence, body) = (self.head, begun.number, begun.batch(self.unix));
        self.log.push(Placed { position, host: NO_HOST, sequence, body });
        self.noted = Some(Era { sign: self.incarnation.to_string(), ..begun });
    }

    /// Accepts a call of a client. Returns its answers.
    pub fn calls(&mut self, client: usize, now_ms: u64, gap: u64, call: Call) -> Vec<Answer> {
        self.note_era(gap);
        if let Call::Attend { listens } = call {
            let batches = self.unread(client);
            if listens {
                self.resting.remove(&client);
            } else {
                self.resting.insert(client);
            }
            return batches.into_iter().chain([Answer::Attends { listens }]).collect();
        }
        let reads = matches!(call, Call::Append(_) | Call::Renew { .. });
        let answer = self.call(client, now_ms, gap, call);
        let reads = reads && self.resting.contains(&client);
        let batches = reads.then(|| self.unread(client)).flatten();
        [answer].into_iter().chain(batches).collect()
    }

    /// Whether clients may rest.
    pub fn lets_rest(&self) -> bool {
        self.flavour == Flavour::Counting
    }

    fn lapsed(&self, incarnation: &Incarnation, now_ms: u64) -> bool {
        self.flavour == Flavour::Watching && now_ms >= incarnation.renewed_ms + incarnation.ttl_ms
    }

    /// Carries out a call of a client at a time. `gap` is the distance of this batch from the one
    /// before.
    pub fn call(&mut self, client: usize, now_ms: u64, gap: u64, call: Call) -> Answer {
        match call {
            Call::Register(registration) => self.register(client, now_ms, registration),
            Call::Withdraw { host } => {
                if self.hosts.get(&host).is_some_and(|mine| mine.last.is_none()) {
                    self.hosts.remove(&host);
                }
                Answer::Withdrawn { host }
            }
            Call::Load => {
                self.cursors.insert(client, self.head);
                Answer::Loaded { snapshot: self.stored.clone(), batches: self.log.clone() }
            }
            Call::Follow { after } => self.follow(client, after),
            Call::Append(Append { host, .. }) | Call::Renew { host, .. }
                if self.is_another(host, client) =>
            {
                // Its number was used again after history was lost.
                Answer::Fenced { host, why: "it is somebody else".to_owned() }
            }
            Call::Append(append) => self.append(now_ms, gap, append),
            Call::Renew { host, asked_at } => self.renew(now_ms, host, asked_at),
            Call::Attend { .. } => unreachable!("it was taken before"),
            Call::Store(stored) => {
                self.store(stored);
                let position = self.stored.as_ref().map_or(Position(0), |stored| stored.position);
                Answer::Stored { position }
            }
        }
    }

    /// Whether a number was used twice, and belongs to another client now.
    fn is_another(&self, host: HostId, client: usize) -> bool {
        let twice = host.0 <= self.lost_hosts;
        twice && self.hosts.get(&host).is_some_and(|mine| mine.client != client)
    }

    fn store(&mut self, stored: Stored) {
        let is_older = self.stored.as_ref().is_some_and(|old| old.position >= stored.position);
        if is_older || stored.position > self.head {
            return;
        }
        let last = self.log.iter().find(|placed| placed.position == stored.position);
        self.covered = last.map(Placed::read);
        self.log.retain(|placed| placed.position > stored.position);
        self.stored = Some(stored);
        self.counts.snapshots += 1;
    }

    fn register(
        &mut self,
        client: usize,
        now_ms: u64,
        Registration { identity, nonce, ttl_ms, asked_at }: Registration,
    ) -> Answer {
        let known = self.hosts.iter().find(|(_, known)| known.nonce == nonce);
        let host = match known {
            Some((host, _)) => *host,
            None => HostId(self.last_host + 1),
        };
        self.last_host = self.last_host.max(host.0);
        self.hosts.entry(host).or_insert(Incarnation {
            client,
            identity: identity.clone(),
            nonce,
            ttl_ms,
            renewals: 0,
            renewed_ms: now_ms,
            ended: false,
            ended_itself: false,
            last: None,
        });
        let same = |other: &Incarnation| !other.ended && other.identity.label == identity.label;
        let others = self.hosts.iter().filter(|(other, known)| **other != host && same(known));
        let others = others.map(|(other, known)| Claimant {
            host: *other,
            nonce: known.nonce,
            identity: known.identity.clone(),
        });
        let others = others.collect();
        Answer::Registered { host, ttl_ms, asked_at, epoch: self.epoch, others }
    }

    fn follow(&mut self, client: usize, after: Option<Read>) -> Answer {
        let Some(read) = after else {
            if self.stored.is_some() {
                return Answer::Compacted;
            }
            self.cursors.insert(client, self.head);
            return Answer::Batches(self.log.clone());
        };
        // It receives batches again once it has read those that it lacks.
        self.cursors.remove(&client);
        let covers = |stored: &Stored| stored.position > read.position;
        if self.stored.as_ref().is_some_and(covers) {
            return Answer::Compacted;
        }
        let is = |placed: &Placed| placed.position == read.position && placed.read() == read;
        let is_known = self.covered == Some(read) || self.log.iter().any(is);
        if !self.careless && !is_known {
            return Answer::Rewritten;
        }
        self.cursors.insert(client, self.head);
        Answer::Batches(self.after(read.position))
    }

    fn after(&self, position: Position) -> Vec<Placed> {
        self.log.iter().filter(|placed| placed.position > position).cloned().collect()
    }

    fn append(&mut self, now_ms: u64, gap: u64, append: Append) -> Answer {
        let Append { host, sequence, body, ends } = append;
        let fenced = |why: &str| Answer::Fenced { host, why: why.to_owned() };
        let hash = Hash::of(&body);
        let Some(mine) = self.hosts.get(&host) else { return fenced("unknown") };
        if let Some((last, known, position)) = mine.last
            && last == sequence
        {
            let same = known == hash;
            return if same && (!mine.ended || mine.ended_itself) {
                Answer::Appended { host, sequence, position }
            } else {
                fenced("somebody else appends in its name, or it has ended")
            };
        }
        // A call that was repeated on the way, and arrived after the next one.
        let earlier = self.log.iter().find(|placed| {
            (placed.host, placed.sequence) == (host, sequence) && placed.body == body
        });
        if let Some(Placed { position, .. }) = earlier {
            return Answer::Appended { host, sequence, position: *position };
        }
        if mine.ended || self.lapsed(mine, now_ms) {
            return fenced("it has ended");
        }
        if sequence != mine.last.map_or(0, |last| last.0) + 1 {
            return fenced("its number is not the next");
        }
        if let Some(ends) = ends {
            let other = self.hosts.get(&ends.host).filter(|other| !other.ended);
            let is_unknown = !self.hosts.contains_key(&ends.host);
            let holds = other.map_or(is_unknown, |other| match ends.evidence {
                Evidence::Unknown => false,
                Evidence::Lapsed => self.lapsed(other, now_ms),
                Evidence::Silent { renewals } => other.renewals == renewals,
                Evidence::Own => true,
            });
            if !holds || is_unknown != (ends.evidence == Evidence::Unknown) {
                return Answer::Overtaken { host, sequence, ends: Some(ends) };
            }
            if let Some(other) = self.hosts.get_mut(&ends.host) {
                other.ended = true;
                other.ended_itself = ends.host == host;
            }
            let Counts { gone, succeeded, .. } = &mut self.counts;
            *if ends.evidence == Evidence::Own { succeeded } else { gone } += 1;
        }
        self.head = Position(self.head.0 + gap);
        let position = self.head;
        self.log.push(Placed { position, host, sequence, body });
        if let Some(mine) = self.hosts.get_mut(&host) {
            mine.last = Some((sequence, hash, position));
        }
        Answer::Appended { host, sequence, position }
    }

    fn renew(&mut self, now_ms: u64, host: HostId, asked_at: u64) -> Answer {
        let lapsed = self.hosts.get(&host).is_none_or(|mine| self.lapsed(mine, now_ms));
        let Some(mine) = self.hosts.get_mut(&host).filter(|mine| !mine.ended && !lapsed) else {
            return Answer::Fenced { host, why: "it has ended".to_owned() };
        };
        mine.renewals += 1;
        mine.renewed_ms = now_ms;
        let ttl_ms = mine.ttl_ms;
        let alive = self.hosts.iter().filter(|(_, other)| !other.ended);
        let alive = alive.map(|(host, other)| {
            let sign = match self.flavour {
                Flavour::Counting => Sign::Renewals(other.renewals),
                Flavour::Watching if self.lapsed(other, now_ms) => Sign::Lapsed,
                Flavour::Watching => Sign::Watched,
            };
            Alive { host: *host, ttl_ms: other.ttl_ms, sign }
        });
        Answer::Renewed { asked_at, ttl_ms, head: self.head, hosts: alive.collect() }
    }

    /// The batches to announce to a client.
    pub fn push(&mut self, client: usize) -> Option<Answer> {
        if self.resting.contains(&client) { None } else { self.unread(client) }
    }

    /// The batches that a following client has not received yet.
    fn unread(&mut self, client: usize) -> Option<Answer> {
        let cursor = self.cursors.get_mut(&client)?;
        if self.stored.as_ref().is_some_and(|stored| stored.position > *cursor) {
            self.cursors.remove(&client);
            return Some(Answer::Compacted);
        }
        let from = std::mem::replace(cursor, self.head);
        let batches = self.after(from);
        (!batches.is_empty()).then_some(Answer::Batches(batches))
    }
}
