//! The grants that commands know of (claims), and the conditions that these must meet.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::{KEYS, Lock, Want};
use crate::sim::machine::Machine;
use canal_core::{Key, Mode, Table, Token};

/// A command must end within this time after its hold has ended, in milliseconds.
const ENDS_WITHIN_MS: u64 = 20;

/// The end of a received grant.
#[derive(Clone, Debug)]
pub(in crate::sim) enum Until {
    /// When all processes with these serials have ended.
    Processes(Vec<u64>),
    /// At this time, in milliseconds of true time.
    Time(u64),
}

/// A grant that a command knows of.
#[derive(Clone, Debug)]
pub(in crate::sim) struct ReceivedGrant {
    pub(in crate::sim) host: usize,
    pub(in crate::sim) wants: Vec<Want>,
    /// The slots of each item in `wants`.
    pub(in crate::sim) slots: Vec<Vec<u64>>,
    pub(in crate::sim) token: u64,
    pub(in crate::sim) session: String,
    pub(in crate::sim) frame: String,
    /// The frames around it, if the daemon accepted its environment.
    pub(in crate::sim) enclosing: Vec<String>,
    /// No supervisor watches the command until this time, in milliseconds of true time.
    pub(in crate::sim) unwatched_until: u64,
    pub(in crate::sim) until: Until,
}

/// Identifies a received grant.
pub(in crate::sim) type ReceivedGrantId = usize;

/// All received grants of a run.
#[derive(Debug, Default)]
pub(in crate::sim) struct ReceivedGrants {
    all: Vec<ReceivedGrant>,
    live: Vec<ReceivedGrantId>,
    /// Whether the live received grants may conflict. If they fit, so does each subset, so no check
    /// is needed until the next received.
    may_not_fit: bool,
    /// ReceivedGrants whose hold has ended in a table, and since when.
    unheld: BTreeMap<ReceivedGrantId, u64>,
}

impl ReceivedGrants {
    /// Notes that a command received a grant.
    ///
    /// # Errors
    /// A command received a larger token earlier for a received grant that excludes this one. This
    /// does not apply to a client that reads so late that, by its own clock, its lease is already
    /// over.
    pub(in crate::sim) fn add(
        &mut self,
        now_ms: u64,
        received: ReceivedGrant,
    ) -> Result<ReceivedGrantId, String> {
        let is_over = matches!(received.until, Until::Time(until) if until <= now_ms);
        for earlier in &self.all {
            let same = earlier.token == received.token;
            let is_later = earlier.token > received.token && !is_over;
            if same || is_later && excludes(earlier, &received) {
                return Err(format!("{received:?} was told after {earlier:?}"));
            }
        }
        self.may_not_fit = self.may_not_fit || !self.fits_beside_all(&received);
        self.live.push(self.all.len());
        self.all.push(received);
        Ok(self.all.len() - 1)
    }

    /// Whether a received grant fits with all live ones, provided that these fit together.
    fn fits_beside_all(&self, received: &ReceivedGrant) -> bool {
        let live = || self.live.iter().map(|id| &self.all[*id]);
        let has_room = |want: &Want| {
            let slots: BTreeSet<u64> =
                live().chain([received]).flat_map(|received| received.slots_of(want.key)).collect();
            slots.len() as u64 <= want.lock.capacity()
        };
        live().all(|other| !overlaps(other, received)) && received.wants.iter().all(has_room)
    }

    /// A mutable received.
    pub(in crate::sim) fn get(&mut self, id: ReceivedGrantId) -> &mut ReceivedGrant {
        &mut self.all[id]
    }

    pub(in crate::sim) fn end(&mut self, id: ReceivedGrantId) {
        self.live.retain(|live| *live != id);
    }

    /// Forgets the received grants that have ended on their own.
    pub(in crate::sim) fn follow(&mut self, now_ms: u64, machines: &[&Machine]) {
        let Self { all, live, .. } = self;
        live.retain(|id| {
            let received = &all[*id];
            match &received.until {
                Until::Processes(serials) => {
                    serials.iter().any(|serial| machines[received.host].lives(*serial))
                }
                Until::Time(until) => *until > now_ms,
            }
        });
    }

    /// How many grants commands have received.
    pub(in crate::sim) fn told(&self) -> usize {
        self.all.len()
    }

    pub(in crate::sim) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Checks that all live received grants that `counts` accepts fit together.
    ///
    /// # Errors
    /// The received grants that do not fit.
    pub(in crate::sim) fn check(
        &mut self,
        counts: impl Fn(&ReceivedGrant) -> bool,
    ) -> Result<(), String> {
        if !self.may_not_fit {
            return Ok(());
        }
        self.check_all(counts)?;
        self.may_not_fit = self.check_all(|_| true).is_err();
        Ok(())
    }

    /// Checks that all live received grants that `counts` accepts are held in every table that has
    /// read their grants. A table that no longer holds one may have granted its locks to others.
    ///
    /// # Errors
    /// The received grant that is not held.
    pub(in crate::sim) fn check_held(
        &mut self,
        now_ms: u64,
        tables: &[&Table],
        counts: impl Fn(&ReceivedGrant) -> bool,
    ) -> Result<(), String> {
        let Self { all, live, unheld, .. } = self;
        for id in live.iter() {
            let received = &all[*id];
            let token = Token(received.token);
            let has_ended = |table: &&Table| {
                let has_read = token < table.globals().next_token;
                has_read && table.hold(token).is_none() && table.recovery().is_none()
            };
            if !tables.iter().any(has_ended) || !counts(received) {
                unheld.remove(id);
            } else if now_ms > *unheld.entry(*id).or_insert(now_ms) + ENDS_WITHIN_MS {
                return Err(format!("it runs on without its lock: {received:?}"));
            }
        }
        Ok(())
    }

    fn check_all(&self, counts: impl Fn(&ReceivedGrant) -> bool) -> Result<(), String> {
        let live = self.live.iter().map(|id| &self.all[*id]);
        let live: Vec<&ReceivedGrant> = live.filter(|received| counts(received)).collect();
        for (at, one) in live.iter().enumerate() {
            if let Some(other) = live[at + 1..].iter().find(|other| overlaps(one, other)) {
                return Err(format!("both are held: {one:?} and {other:?}"));
            }
        }
        for (key, lock) in KEYS.into_iter().filter(|(_, lock)| *lock != Lock::ReadWrite) {
            let slots: BTreeSet<u64> =
                live.iter().flat_map(|received| received.slots_of(key)).collect();
            if slots.len() as u64 > lock.capacity() {
                return Err(format!("more slots of `{key}` are held than there are: {live:?}"));
            }
        }
        Ok(())
    }
}

impl ReceivedGrant {
    fn slots_of(&self, key: &str) -> impl Iterator<Item = u64> {
        let items = self.wants.iter().zip(&self.slots).filter(move |(want, _)| want.key == key);
        items.flat_map(|(_, slots)| slots.iter().copied())
    }

    /// Whether one of two received grants is within the frame of the other.
    fn is_related(&self, other: &Self) -> bool {
        let under = |one: &Self, other: &Self| one.enclosing.contains(&other.frame);
        let same_session = self.host == other.host && self.session == other.session;
        same_session && (under(self, other) || under(other, self))
    }
}

/// Whether two received grants have the same slot, or the same lock with one of them writing. Only
/// a received grant within another received may share with it: read and write locks, and slots of a
/// lock without buckets.
fn overlaps(one: &ReceivedGrant, other: &ReceivedGrant) -> bool {
    let related = one.is_related(other);
    let same_slot = |(key, lock): (&str, Lock)| {
        let shares = related && matches!(lock, Lock::Slots(_));
        let others: BTreeSet<u64> = other.slots_of(key).collect();
        !shares && one.slots_of(key).any(|slot| others.contains(&slot))
    };
    !related && exclude_each_other(one, other) || KEYS.into_iter().any(same_slot)
}

/// Whether one received grant must have ended before the other one begins.
fn excludes(one: &ReceivedGrant, other: &ReceivedGrant) -> bool {
    let is_mutex = |want: &Want| {
        let is_same = |other: &Want| other.key == want.key;
        want.lock == Lock::Slots(1) && other.wants.iter().any(is_same)
    };
    !one.is_related(other) && (one.wants.iter().any(is_mutex) || exclude_each_other(one, other))
}

fn exclude_each_other(one: &ReceivedGrant, other: &ReceivedGrant) -> bool {
    one.wants.iter().any(|one| other.wants.iter().any(|other| write_and_other(one, other)))
}

fn write_and_other(one: &Want, other: &Want) -> bool {
    let writes = one.mode == Some(Mode::Write) || other.mode == Some(Mode::Write);
    let key = |want: &Want| Key::new(want.key).unwrap();
    let covers = || key(one).covers(&key(other)) || key(other).covers(&key(one));
    writes && covers()
}
