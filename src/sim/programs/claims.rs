//! What commands were told that they hold, and what must be true of it.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::{KEYS, Lock, Want};
use crate::core::{Key, Mode, Table, Token};
use crate::sim::machine::Machine;

/// A command whose hold has ended must itself have ended this soon, in milliseconds.
const ENDS_WITHIN_MS: u64 = 20;

/// Until when something is held.
#[derive(Clone, Debug)]
pub(in crate::sim) enum Until {
    /// Until all processes with these serials have ended.
    Processes(Vec<u64>),
    /// Until this time, in milliseconds of true time.
    Time(u64),
}

/// What a command was told that it holds.
#[derive(Clone, Debug)]
pub(in crate::sim) struct Claim {
    pub(in crate::sim) host: usize,
    pub(in crate::sim) wants: Vec<Want>,
    /// The slots of each of these.
    pub(in crate::sim) slots: Vec<Vec<u64>>,
    pub(in crate::sim) token: u64,
    pub(in crate::sim) session: String,
    pub(in crate::sim) frame: String,
    /// The frames that enclose it, if the daemon believed its environment.
    pub(in crate::sim) enclosing: Vec<String>,
    /// Until then no supervisor looks after the command, in milliseconds of true time.
    pub(in crate::sim) unwatched_until: u64,
    pub(in crate::sim) until: Until,
}

/// Names a claim.
pub(in crate::sim) type ClaimId = usize;

/// All claims of a run.
#[derive(Debug, Default)]
pub(in crate::sim) struct Claims {
    all: Vec<Claim>,
    live: Vec<ClaimId>,
    /// Whether all that are live may not fit beside each other. If they do, so do fewer of them, and
    /// nothing need be checked until there is another one.
    may_not_fit: bool,
    /// Those whose hold has ended in a table, and since when.
    unheld: BTreeMap<ClaimId, u64>,
}

impl Claims {
    /// Notes that a command was told of a grant.
    ///
    /// # Errors
    /// A command was told of a larger token of what excludes this. A client that reads so late that its lease is
    /// over knows that, by its own clock.
    pub(in crate::sim) fn add(&mut self, now_ms: u64, claim: Claim) -> Result<ClaimId, String> {
        let is_over = matches!(claim.until, Until::Time(until) if until <= now_ms);
        for earlier in &self.all {
            let same = earlier.token == claim.token;
            let is_later = earlier.token > claim.token && !is_over;
            if same || is_later && excludes(earlier, &claim) {
                return Err(format!("{claim:?} was told after {earlier:?}"));
            }
        }
        self.may_not_fit = self.may_not_fit || !self.fits_beside_all(&claim);
        self.live.push(self.all.len());
        self.all.push(claim);
        Ok(self.all.len() - 1)
    }

    /// Whether a claim fits beside all that are live, if these fit beside each other.
    fn fits_beside_all(&self, claim: &Claim) -> bool {
        let live = || self.live.iter().map(|id| &self.all[*id]);
        let has_room = |want: &Want| {
            let slots: BTreeSet<u64> =
                live().chain([claim]).flat_map(|claim| claim.slots_of(want.key)).collect();
            slots.len() as u64 <= want.lock.capacity()
        };
        live().all(|other| !overlaps(other, claim)) && claim.wants.iter().all(has_room)
    }

    /// A claim that may be changed.
    pub(in crate::sim) fn get(&mut self, id: ClaimId) -> &mut Claim {
        &mut self.all[id]
    }

    /// Ends a claim.
    pub(in crate::sim) fn end(&mut self, id: ClaimId) {
        self.live.retain(|live| *live != id);
    }

    /// Forgets the claims that have ended by themselves.
    pub(in crate::sim) fn follow(&mut self, now_ms: u64, machines: &[&Machine]) {
        let Self { all, live, .. } = self;
        live.retain(|id| {
            let claim = &all[*id];
            match &claim.until {
                Until::Processes(serials) => {
                    serials.iter().any(|serial| machines[claim.host].lives(*serial))
                }
                Until::Time(until) => *until > now_ms,
            }
        });
    }

    /// How many grants were told.
    pub(in crate::sim) fn told(&self) -> usize {
        self.all.len()
    }

    pub(in crate::sim) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Checks that everything fits that is held at the same time and `counts`.
    ///
    /// # Errors
    /// What does not.
    pub(in crate::sim) fn check(&mut self, counts: impl Fn(&Claim) -> bool) -> Result<(), String> {
        if !self.may_not_fit {
            return Ok(());
        }
        self.check_all(counts)?;
        self.may_not_fit = self.check_all(|_| true).is_err();
        Ok(())
    }

    /// Checks that whatever is held and `counts` is held in all tables that have read so far. What
    /// a table does not hold any more, it may have granted to others.
    ///
    /// # Errors
    /// What is not.
    pub(in crate::sim) fn check_held(
        &mut self,
        now_ms: u64,
        tables: &[&Table],
        counts: impl Fn(&Claim) -> bool,
    ) -> Result<(), String> {
        let Self { all, live, unheld, .. } = self;
        for id in live.iter() {
            let claim = &all[*id];
            let token = Token(claim.token);
            let has_ended = |table: &&Table| {
                let has_read = token < table.next_token();
                has_read && table.hold(token).is_none() && table.recovery().is_none()
            };
            if !tables.iter().any(has_ended) || !counts(claim) {
                unheld.remove(id);
            } else if now_ms > *unheld.entry(*id).or_insert(now_ms) + ENDS_WITHIN_MS {
                return Err(format!("it runs on without its lock: {claim:?}"));
            }
        }
        Ok(())
    }

    fn check_all(&self, counts: impl Fn(&Claim) -> bool) -> Result<(), String> {
        let live = self.live.iter().map(|id| &self.all[*id]);
        let live: Vec<&Claim> = live.filter(|claim| counts(claim)).collect();
        for (at, one) in live.iter().enumerate() {
            if let Some(other) = live[at + 1..].iter().find(|other| overlaps(one, other)) {
                return Err(format!("both are held: {one:?} and {other:?}"));
            }
        }
        for (key, lock) in KEYS.into_iter().filter(|(_, lock)| *lock != Lock::ReadWrite) {
            let slots: BTreeSet<u64> = live.iter().flat_map(|claim| claim.slots_of(key)).collect();
            if slots.len() as u64 > lock.capacity() {
                return Err(format!("more slots of `{key}` are held than there are: {live:?}"));
            }
        }
        Ok(())
    }
}

impl Claim {
    fn slots_of(&self, key: &str) -> impl Iterator<Item = u64> {
        let items = self.wants.iter().zip(&self.slots).filter(move |(want, _)| want.key == key);
        items.flat_map(|(_, slots)| slots.iter().copied())
    }

    /// Whether one of two claims is under the other.
    fn is_related(&self, other: &Self) -> bool {
        let under = |one: &Self, other: &Self| one.enclosing.contains(&other.frame);
        let same_session = self.host == other.host && self.session == other.session;
        same_session && (under(self, other) || under(other, self))
    }
}

/// Whether two claims have the same slot, or the same lock and one of them for writing. Only what
/// is under another claim may share with it: what it reads and writes, and slots of a lock that has
/// no buckets.
fn overlaps(one: &Claim, other: &Claim) -> bool {
    let related = one.is_related(other);
    let same_slot = |(key, lock): (&str, Lock)| {
        let shares = related && matches!(lock, Lock::Slots(_));
        let others: BTreeSet<u64> = other.slots_of(key).collect();
        !shares && one.slots_of(key).any(|slot| others.contains(&slot))
    };
    !related && exclude_each_other(one, other) || KEYS.into_iter().any(same_slot)
}

/// Whether one claim must have ended before the other one begins.
fn excludes(one: &Claim, other: &Claim) -> bool {
    let is_mutex = |want: &Want| {
        let is_same = |other: &Want| other.key == want.key;
        want.lock == Lock::Slots(1) && other.wants.iter().any(is_same)
    };
    !one.is_related(other) && (one.wants.iter().any(is_mutex) || exclude_each_other(one, other))
}

fn exclude_each_other(one: &Claim, other: &Claim) -> bool {
    one.wants.iter().any(|one| other.wants.iter().any(|other| write_and_other(one, other)))
}

fn write_and_other(one: &Want, other: &Want) -> bool {
    let writes = one.mode == Some(Mode::Write) || other.mode == Some(Mode::Write);
    let key = |want: &Want| Key::new(want.key).unwrap();
    let covers = || key(one).covers(&key(other)) || key(other).covers(&key(one));
    writes && covers()
}
