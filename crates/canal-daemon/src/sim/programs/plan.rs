//! The requests of simulated commands.

use fastrand::Rng;

use canal_core::Mode;
use canal_protocol::WireItem;

/// The lock of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum Lock {
    /// A number of slots.
    Slots(u64),
    /// Slots in buckets.
    Buckets { per: u64, buckets: u64 },
    /// A lock for reading and writing.
    ReadWrite,
}

impl Lock {
    /// The size of the lock.
    pub(in crate::sim) fn capacity(self) -> u64 {
        match self {
            Self::Slots(slots) => slots,
            Self::Buckets { per, buckets } => per * buckets,
            Self::ReadWrite => u64::MAX,
        }
    }
}

/// The keys of every run.
pub(in crate::sim) const KEYS: [(&str, Lock); 6] = [
    ("a", Lock::Slots(2)),
    ("b", Lock::ReadWrite),
    ("b/c", Lock::ReadWrite),
    ("d", Lock::Slots(1)),
    ("e", Lock::Buckets { per: 2, buckets: 2 }),
    ("f", Lock::ReadWrite),
];

/// The distribution of the requests of a run.
#[derive(Clone, Debug)]
pub(in crate::sim) struct Demand {
    /// Indices into [`KEYS`].
    pub(in crate::sim) keys: Vec<usize>,
    /// How many of six requests for a read and write lock write.
    pub(in crate::sim) writes: u8,
    /// How many of eight commands take long.
    pub(in crate::sim) long: u8,
    /// The maximum duration of these, in milliseconds.
    pub(in crate::sim) long_ms: u64,
    /// The maximum duration of the others, in milliseconds.
    pub(in crate::sim) short_ms: u64,
    pub(in crate::sim) has_leases: bool,
    /// Whether commands run others under locks.
    pub(in crate::sim) is_nested: bool,
}

/// One item of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) struct Want {
    pub(in crate::sim) key: &'static str,
    pub(in crate::sim) lock: Lock,
    /// The number of slots; 0 for a read and write lock.
    pub(in crate::sim) count: u64,
    pub(in crate::sim) mode: Option<Mode>,
    /// Whether it passes the size of the lock. Otherwise the daemon chooses a size, which is no
    /// larger.
    pub(in crate::sim) states: bool,
}

impl Want {
    pub(in crate::sim) fn on_wire(&self) -> WireItem {
        let mut item = WireItem { key: self.key.into(), mode: self.mode, ..WireItem::default() };
        match self.lock {
            _ if !self.states => {}
            Lock::Slots(slots) => item.slots = Some(slots),
            Lock::Buckets { per, buckets } => (item.per, item.buckets) = (Some(per), Some(buckets)),
            Lock::ReadWrite => {}
        }
        if self.count > 1 {
            item.count = Some(self.count);
        }
        item
    }
}

/// The form of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum How {
    /// `canal run`.
    Run,
    /// `canal run --with-children`, with a descendant that lives on for this number of
    /// milliseconds.
    WithChildren(u64),
    /// `canal acquire --pid`.
    ForProcess,
    /// `canal acquire --ttl`, in milliseconds.
    Lease(u64),
}

/// A request, and the work under it.
#[derive(Clone, Debug)]
pub(in crate::sim) struct Plan {
    pub(in crate::sim) wants: Vec<Want>,
    pub(in crate::sim) wait_ms: Option<u64>,
    pub(in crate::sim) priority: i32,
    pub(in crate::sim) how: How,
    pub(in crate::sim) work_ms: u64,
    /// A command started under this one.
    pub(in crate::sim) inner: Option<Box<Self>>,
}

fn want(rng: &mut Rng, demand: &Demand) -> Want {
    let (key, lock) = KEYS[demand.keys[rng.usize(0..demand.keys.len())]];
    match lock {
        Lock::ReadWrite => {
            let mode = if rng.u8(0..6) < demand.writes { Mode::Write } else { Mode::Read };
            Want { key, lock, count: 0, mode: Some(mode), states: false }
        }
        _ => {
            let most = lock.capacity();
            let count = if rng.u8(0..3) == 0 { rng.u64(1..=most) } else { 1 };
            // For an idle key, a request without a size makes a lock of slots.
            let may_follow = count == 1 && matches!(lock, Lock::Slots(_));
            let states = !may_follow || rng.u8(0..4) > 0;
            Want { key, lock, count, mode: None, states }
        }
    }
}

/// The items of a request, each with a different key.
fn wants(rng: &mut Rng, demand: &Demand) -> Vec<Want> {
    let mut wants: Vec<Want> = Vec::new();
    for _ in 0..[1, 1, 1, 2, 3][rng.usize(0..5)] {
        let next = want(rng, demand);
        if wants.iter().all(|other| other.key != next.key) {
            wants.push(next);
        }
    }
    wants
}

impl Plan {
    /// A request of any form.
    pub(in crate::sim) fn any(rng: &mut Rng, demand: &Demand) -> Self {
        let how = match rng.u8(0..8) {
            0 => How::WithChildren(rng.u64(0..600)),
            1 => How::ForProcess,
            2 if demand.has_leases => How::Lease(rng.u64(1_000..2_000)),
            _ => How::Run,
        };
        let mut plan = Self::of(rng, demand, how);
        // Start nothing under `--with-children`: a command that outlives its parent keeps the
        // parent's lock through the inherited FIFO, and would wait for itself.
        if how == How::Run && demand.is_nested && rng.u8(0..3) == 0 {
            let inner = if rng.bool() {
                let middle = Self::of(rng, demand, How::Run);
                let innermost = Some(Box::new(Self::of(rng, demand, How::Run)));
                Self { inner: innermost, ..middle }
            } else {
                let how = if rng.bool() { How::WithChildren(300) } else { How::Run };
                Self::of(rng, demand, how)
            };
            plan.inner = Some(Box::new(inner));
        }
        plan
    }

    fn of(rng: &mut Rng, demand: &Demand, how: How) -> Self {
        let wait_ms = match rng.u8(0..6) {
            0 => Some(0),
            1 => Some(rng.u64(1..3_000)),
            _ => None,
        };
        let priority = if rng.u8(0..6) == 0 { 1 } else { 0 };
        let is_long = rng.u8(0..8) < demand.long;
        let work_ms = rng.u64(0..if is_long { demand.long_ms } else { demand.short_ms });
        Self { wants: wants(rng, demand), wait_ms, priority, how, work_ms, inner: None }
    }
}
