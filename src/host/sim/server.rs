//! An engine in memory: what the contract in `log::engine` says, in either flavour of liveness.

use std::collections::BTreeMap;

use crate::core::HostId;
use crate::host::encoding::body_hash;
use crate::log::engine::{
    Alive, Answer, Append, Call, Era, Evidence, Hash, Identity, Placed, Position, Read, Sign,
    Stored,
};

/// How it knows who lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// As PostgreSQL: it counts renewals.
    Counting,
    /// As etcd: it watches over leases.
    Watching,
}

/// An incarnation as the engine knows it.
#[derive(Clone, Debug)]
pub(crate) struct Incarnation {
    client: usize,
    identity: Identity,
    nonce: u128,
    ttl_ms: u64,
    renewals: u64,
    renewed_ms: u64,
    pub(crate) ended: bool,
    last: Option<(u64, Hash, Position)>,
}

/// The engine.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    flavour: Flavour,
    pub(crate) epoch: u128,
    pub(crate) log: Vec<Placed>,
    pub(crate) stored: Option<Stored>,
    head: Position,
    pub(crate) hosts: BTreeMap<HostId, Incarnation>,
    /// How far each client was given batches, while it follows.
    pub(crate) cursors: BTreeMap<usize, Position>,
    /// Does not look whether what was read is still there.
    pub(crate) careless: bool,
    last_host: u64,
    /// The era that the log names.
    noted: Option<Era>,
    /// Which life of the engine this is; 0 is one that names no eras.
    incarnation: u64,
    /// Whether batches may be missing since the era that is noted.
    may_lack: bool,
    /// What was called in an era that is not noted yet.
    held_back: BTreeMap<usize, Vec<Call>>,
}

impl Server {
    pub(crate) fn new(flavour: Flavour) -> Self {
        Self {
            flavour,
            epoch: 7,
            log: Vec::new(),
            stored: None,
            head: Position(0),
            hosts: BTreeMap::new(),
            cursors: BTreeMap::new(),
            careless: false,
            last_host: 0,
            noted: None,
            incarnation: 0,
            may_lack: false,
            held_back: BTreeMap::new(),
        }
    }

    /// Another life of the engine begins. All connections are gone.
    pub(crate) fn live_anew(&mut self, incarnation: u64, may_lack: bool) {
        self.cursors.clear();
        self.held_back.clear();
        self.incarnation = incarnation;
        self.may_lack |= may_lack;
    }

    /// A client has no connection any more.
    pub(crate) fn disconnect(&mut self, client: usize) {
        self.cursors.remove(&client);
        self.held_back.remove(&client);
    }

    pub(crate) fn is_in_new_era(&self) -> bool {
        self.new_era().is_some()
    }

    /// The era that begins, if it is not noted.
    fn new_era(&self) -> Option<Era> {
        let sign = self.incarnation.to_string();
        let noted =
            self.incarnation == 0 || self.noted.as_ref().is_some_and(|noted| noted.sign == sign);
        let number = self.noted.as_ref().map_or(0, |noted| noted.number) + 1;
        (!noted).then_some(Era { number, sign })
    }

    /// Takes a call of a client; its answers, if there are any now.
    pub(crate) fn calls(
        &mut self,
        client: usize,
        now_ms: u64,
        gap: u64,
        call: Call,
    ) -> Vec<Answer> {
        if let Call::NoteEra { before, era, body } = call {
            if self.new_era().as_ref() == Some(&era) && before == self.noted {
                self.head = Position(self.head.0 + gap);
                let (position, sequence) = (self.head, era.number);
                self.log.push(Placed { position, host: HostId(0), sequence, body });
                self.noted = Some(era);
                self.may_lack = false;
            }
            let held_back = self.held_back.remove(&client).unwrap_or_default();
            let calls = held_back.into_iter();
            return calls.flat_map(|call| self.calls(client, now_ms, gap, call)).collect();
        }
        if let Some(era) = self.new_era() {
            self.held_back.entry(client).or_default().push(call);
            let (before, may_lack) = (self.noted.clone(), self.may_lack);
            return vec![Answer::NewEra { before, era, may_lack }];
        }
        vec![self.call(client, now_ms, gap, call)]
    }

    fn lapsed(&self, incarnation: &Incarnation, now_ms: u64) -> bool {
        self.flavour == Flavour::Watching && now_ms >= incarnation.renewed_ms + incarnation.ttl_ms
    }

    /// Carries out a call of a client at a time. `gap` lies between this batch and the one before.
    pub(crate) fn call(&mut self, client: usize, now_ms: u64, gap: u64, call: Call) -> Answer {
        match call {
            Call::Register { identity, nonce, ttl_ms, asked_at } => {
                self.register(client, now_ms, (identity, nonce, ttl_ms), asked_at)
            }
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
                if self.hosts.get(&host).is_some_and(|mine| mine.client != client) =>
            {
                // Its number was given out once more after history was lost.
                Answer::Fenced { host, why: "it is somebody else".to_owned() }
            }
            Call::Append(append) => self.append(now_ms, gap, append),
            Call::Renew { host, asked_at } => self.renew(now_ms, host, asked_at),
            Call::NoteEra { .. } => unreachable!("it was taken before"),
            Call::Store(stored) => {
                if self.stored.as_ref().is_none_or(|old| old.position < stored.position) {
                    self.log.retain(|placed| placed.position > stored.position);
                    self.stored = Some(stored);
                }
                let position = self.stored.as_ref().map_or(Position(0), |stored| stored.position);
                Answer::Stored { position }
            }
        }
    }

    fn register(
        &mut self,
        client: usize,
        now_ms: u64,
        (identity, nonce, ttl_ms): (Identity, u128, u64),
        asked_at: u64,
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
            last: None,
        });
        let same = |other: &Incarnation| !other.ended && other.identity.label == identity.label;
        let others = self.hosts.iter().filter(|(other, known)| **other != host && same(known));
        let others = others.map(|(other, known)| (*other, known.identity.clone())).collect();
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
        let is = |placed: &&Placed| {
            let same = (placed.host, placed.sequence) == (read.host, read.sequence);
            placed.position == read.position && same && body_hash(&placed.body) == read.body
        };
        if self.stored.as_ref().is_some_and(|stored| stored.position >= read.position) {
            return Answer::Compacted;
        }
        if !self.careless && !self.log.iter().any(|placed| is(&placed)) {
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
        let hash = body_hash(&body);
        let Some(mine) = self.hosts.get(&host) else { return fenced("unknown") };
        if let Some((last, known, position)) = mine.last
            && last == sequence
        {
            let same = known == hash;
            return if same && !mine.ended {
                Answer::Appended { host, sequence, position }
            } else {
                fenced("somebody else appends in its name, or it has ended")
            };
        }
        // A call that was repeated on the way, and overtaken by the next one.
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
            let holds = other.is_some_and(|other| match ends.evidence {
                Evidence::Lapsed => self.lapsed(other, now_ms),
                Evidence::Silent { renewals } => other.renewals == renewals,
                Evidence::Own => true,
            });
            if !holds {
                return Answer::Overtaken { host, sequence, ends: Some(ends) };
            }
            if let Some(other) = self.hosts.get_mut(&ends.host) {
                other.ended = true;
            }
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

    /// What a client that follows was not given yet.
    pub(crate) fn push(&mut self, client: usize) -> Option<Answer> {
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
