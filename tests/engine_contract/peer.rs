//! A host that talks to an engine, one answer at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use canal_core::{Change, HostId};
use canal_log::engine::{
    Alive, Answer, Append, Batch, Call, Claimant, Ends, Engine, Evidence, Hash, Identity, Placed,
    Position, Read, Registration, Stored,
};
use canal_sys::kernel::random;
use sha2::{Digest, Sha256};

use super::Log;

#[allow(clippy::duplicate_mod, reason = "other folders that a test binary includes have it too")]
#[path = "../fixtures/bound.rs"]
mod bound;
pub(crate) use bound::BOUND;

/// The TTL that peers request, in milliseconds.
pub(crate) const TTL_MS: u64 = 60_000;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// One host: its engine, and what it has read.
#[derive(Debug)]
pub(crate) struct Peer {
    engine: Box<dyn Engine + Send>,
    label: String,
    nonce: u128,
    /// Answers that came while the test waited for another one.
    pub(crate) kept: VecDeque<Answer>,
    /// All batches of hosts that it has read, in the order of arrival.
    pub(crate) log: Vec<Placed>,
    /// All batches with eras, likewise.
    pub(crate) noted: Vec<Placed>,
    /// Whether an answer to `Follow` is outstanding.
    follows: bool,
    /// The incarnation, once registered.
    pub(crate) host: HostId,
    /// The number of the last batch.
    pub(crate) sequence: u64,
}

impl Peer {
    /// A host that has neither registered nor read.
    pub(crate) fn new(log: &impl Log, label: &str) -> Self {
        Self::with(log.engine(label), label)
    }

    pub(crate) fn with(engine: Box<dyn Engine + Send>, label: &str) -> Self {
        Self {
            engine,
            label: label.to_owned(),
            nonce: nonce(),
            kept: VecDeque::new(),
            log: Vec::new(),
            noted: Vec::new(),
            follows: false,
            host: HostId(0),
            sequence: 0,
        }
    }

    /// A host that is registered and reads.
    pub(crate) fn joined(log: &impl Log, label: &str) -> Self {
        let mut peer = Self::new(log, label);
        peer.register();
        peer.load();
        peer
    }

    pub(crate) fn call(&mut self, call: Call) {
        self.engine.call(call);
    }

    /// The next answer, if one comes within `patience`.
    pub(crate) fn poll(&mut self, patience: Duration) -> Option<Answer> {
        let until = Instant::now() + patience;
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(answer) = self.engine.poll(&mut context) {
                match self.without_eras(answer) {
                    Some(answer) => return Some(answer),
                    None => continue,
                }
            }
            let left = until.checked_duration_since(Instant::now())?;
            thread::park_timeout(left);
        }
    }

    /// Separates the batches with eras from those of hosts.
    fn without_eras(&mut self, answer: Answer) -> Option<Answer> {
        match answer {
            Answer::Batches(batches) => {
                let (eras, batches) = apart(batches);
                let is_news = eras.is_empty() || !batches.is_empty() || self.follows;
                self.noted.extend(eras);
                self.follows = false;
                is_news.then_some(Answer::Batches(batches))
            }
            Answer::Loaded { snapshot, batches } => {
                let (eras, batches) = apart(batches);
                self.noted = eras;
                Some(Answer::Loaded { snapshot, batches })
            }
            Answer::Rewritten | Answer::Compacted => {
                self.follows = false;
                Some(answer)
            }
            other => Some(other),
        }
    }

    /// Loads the log. Returns the number of each era in it, and whether entries may be missing
    /// since.
    pub(crate) fn load_eras(&mut self) -> Vec<(u64, bool)> {
        self.load();
        self.noted.iter().map(era_of).collect()
    }

    /// Waits for an answer that `want` accepts. Meanwhile reads arriving batches, and keeps other
    /// answers for later.
    pub(crate) fn until<T>(&mut self, what: &str, want: impl Fn(&Answer) -> Option<T>) -> T {
        let kept = self.kept.iter().position(|answer| want(answer).is_some());
        if let Some(found) = kept.and_then(|at| self.kept.remove(at)).and_then(|a| want(&a)) {
            return found;
        }
        let until = Instant::now() + BOUND;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Some(answer) = self.poll(left) else {
                panic!("{}: no {what} came, but {:?}", self.label, self.kept);
            };
            let found = want(&answer);
            match answer {
                Answer::Batches(batches) => self.log.extend(batches),
                _ if found.is_some() => {}
                other => self.kept.push_back(other),
            }
            if let Some(found) = found {
                return found;
            }
        }
    }

    pub(crate) fn identity(&self) -> Identity {
        Identity {
            label: self.label.clone(),
            machine: "machine".to_owned(),
            boot: "boot of \"it\"; '\\x".to_owned(),
            pid_namespace: 4_026_531_836,
            uid: 1000,
            dir: "/tmp/canal-1000".to_owned(),
            dir_number: 1,
        }
    }

    /// The peer's incarnation, as another one with its label sees it.
    pub(crate) fn claimant(&self) -> Claimant {
        Claimant { host: self.host, nonce: self.nonce, identity: self.identity() }
    }

    /// Registers with the peer's nonce. Returns the incarnation, the epoch and the other hosts with
    /// the same label.
    pub(crate) fn register(&mut self) -> (HostId, u128, Vec<Claimant>) {
        let (identity, nonce) = (self.identity(), self.nonce);
        self.call(Call::Register(Registration { identity, nonce, ttl_ms: TTL_MS, asked_at: 17 }));
        let told = self.until("Registered", |answer| match answer {
            Answer::Registered { host, ttl_ms, asked_at, epoch, others } => {
                assert_eq!(*asked_at, 17);
                assert!(*ttl_ms > 0);
                Some((*host, *epoch, others.clone()))
            }
            _ => None,
        });
        self.host = told.0;
        told
    }

    /// Registers as a new incarnation.
    pub(crate) fn register_anew(&mut self) -> HostId {
        self.nonce = nonce();
        self.sequence = 0;
        self.register().0
    }

    /// Loads the snapshot. Afterwards `log` contains the batches after it.
    pub(crate) fn load(&mut self) -> Option<Stored> {
        self.log.clear();
        self.call(Call::Load);
        let (snapshot, batches) = self.until("Loaded", |answer| match answer {
            Answer::Loaded { snapshot, batches } => Some((snapshot.clone(), batches.clone())),
            _ => None,
        });
        // Earlier batches belong to an earlier reading.
        self.log = batches;
        snapshot
    }

    /// Follows, and waits for its first answer.
    pub(crate) fn follow(&mut self, after: Option<Read>) -> Follow {
        self.follows = true;
        self.call(Call::Follow { after });
        self.until("answer to Follow", |answer| match answer {
            Answer::Batches(_) => Some(Follow::Batches),
            Answer::Rewritten => Some(Follow::Rewritten),
            Answer::Compacted => Some(Follow::Compacted),
            _ => None,
        })
    }

    /// Asks for an append, without waiting for the answer.
    pub(crate) fn ask(&mut self, sequence: u64, body: &[u8], ends: Option<Ends>) {
        let body = body.to_vec();
        self.call(Call::Append(Append { host: self.host, sequence, body, ends }));
    }

    /// Waits for the answer to the append with that number.
    pub(crate) fn appended(&mut self, sequence: u64) -> Appending {
        let me = self.host;
        self.until("answer to Append", |answer| match answer {
            Answer::Appended { host, sequence: n, position } if (*host, *n) == (me, sequence) => {
                Some(Appending::At(*position))
            }
            Answer::Overtaken { host, sequence: n, .. } if (*host, *n) == (me, sequence) => {
                Some(Appending::Overtaken)
            }
            Answer::Fenced { host, why } if *host == me => {
                assert!(!why.is_empty());
                Some(Appending::Fenced)
            }
            _ => None,
        })
    }

    /// Appends the next batch.
    pub(crate) fn append(&mut self, body: &[u8]) -> Position {
        self.sequence += 1;
        self.ask(self.sequence, body, None);
        match self.appended(self.sequence) {
            Appending::At(position) => position,
            other => panic!("{} could not append: {other:?}", self.label),
        }
    }

    /// Appends a batch that ends `host`.
    pub(crate) fn end(&mut self, host: HostId, evidence: Evidence) -> Appending {
        self.ask(self.sequence + 1, b"ends", Some(Ends { host, evidence }));
        let answer = self.appended(self.sequence + 1);
        if matches!(answer, Appending::At(_)) {
            self.sequence += 1;
        }
        answer
    }

    /// Renews. Returns the head and the living hosts, or `None` if fenced.
    pub(crate) fn renew(&mut self) -> Option<(Position, Vec<Alive>)> {
        self.call(Call::Renew { host: self.host, asked_at: 23 });
        let me = self.host;
        self.until("answer to Renew", |answer| match answer {
            Answer::Renewed { asked_at, ttl_ms, head, hosts } => {
                assert_eq!((*asked_at, *ttl_ms > 0), (23, true));
                Some(Some((*head, hosts.clone())))
            }
            Answer::Fenced { host, .. } if *host == me => Some(None),
            _ => None,
        })
    }

    /// Stores a snapshot. Returns the position of the stored snapshot.
    pub(crate) fn store(&mut self, position: Position, body: &[u8]) -> Position {
        self.call(Call::Store(Stored { position, body: body.to_vec() }));
        self.until("Stored", |answer| match answer {
            Answer::Stored { position } => Some(*position),
            _ => None,
        })
    }

    /// Waits until it has read `count` batches.
    pub(crate) fn read(&mut self, count: usize) {
        while self.log.len() < count {
            self.until("Batches", |answer| matches!(answer, Answer::Batches(_)).then_some(()));
        }
    }

    /// Waits until it has read everything up to `position`.
    pub(crate) fn read_to(&mut self, position: Position) {
        while self.log.last().is_none_or(|last| last.position < position) {
            self.until("Batches", |answer| matches!(answer, Answer::Batches(_)).then_some(()));
        }
    }

    /// Waits until it has read more. Returns true if it must load a snapshot first.
    pub(crate) fn more(&mut self) -> bool {
        self.until("Batches or Compacted", |answer| match answer {
            Answer::Batches(_) => Some(false),
            Answer::Compacted => Some(true),
            _ => None,
        })
    }

    /// The position, number and hash of the last batch that it read.
    pub(crate) fn last(&self) -> Read {
        read_of(self.log.last().unwrap())
    }

    /// Fails unless the batches that it read are in order.
    pub(crate) fn in_order(&self) {
        assert!(self.log.is_sorted_by(|a, b| a.position < b.position), "{:?}", self.log);
    }
}

fn era_of(placed: &Placed) -> (u64, bool) {
    let batch = Batch::decode(&placed.body).unwrap();
    assert_eq!((batch.host, batch.sequence), (HostId(0), placed.sequence));
    match batch.entries.first().map(|entry| &entry.change) {
        Some(Change::Era { number, may_lack, .. }) if *number == placed.sequence => {
            (*number, *may_lack)
        }
        other => panic!("{other:?}"),
    }
}

/// Separates batches with eras from the other batches.
fn apart(batches: Vec<Placed>) -> (Vec<Placed>, Vec<Placed>) {
    batches.into_iter().partition(|placed| placed.host == HostId(0))
}

/// The first answer to `Follow`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follow {
    Batches,
    Rewritten,
    Compacted,
}

/// The answer to `Append`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Appending {
    At(Position),
    Overtaken,
    Fenced,
}

/// The position, number and hash of a batch.
pub(crate) fn read_of(placed: &Placed) -> Read {
    Read {
        position: placed.position,
        host: placed.host,
        sequence: placed.sequence,
        body: Hash(Sha256::digest(&placed.body).into()),
    }
}

pub(crate) fn nonce() -> u128 {
    random::u128().unwrap()
}
