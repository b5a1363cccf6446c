//! Decides by brute force which requests can be granted.

use std::collections::BTreeSet;

use super::deadlock::{leads_to, remainder};
use super::{Asker, lineage, root, session};
use crate::*;

fn stored(state: &Snapshot, key: &Key) -> Option<View> {
    state.settings.get(key)?.view
}

pub(super) fn is_paused(state: &Snapshot, key: &Key) -> bool {
    state.settings.get(key).is_some_and(|settings| settings.paused)
}

/// The stored size applies to every request. Without one, a request has its own size: the one that
/// it states, or else the one that it was given.
fn view_of(state: &Snapshot, item: &Item) -> View {
    let Ask::Counted { view, given, .. } = item.ask else { panic!("nothing else has a size") };
    stored(state, &item.key).or(view).or(given).unwrap_or(View::Slots { slots: 1 })
}

/// The kind in use, else that of the stored size.
fn kind_of(state: &Snapshot, key: &Key) -> Option<Kind> {
    let held = state.holds.iter().flat_map(|hold| &hold.items);
    let held = held.filter(|item| item.key == *key).filter_map(|item| item.view);
    let wanted = state.waiters.iter().flat_map(|waiter| &waiter.request.items);
    let wanted = wanted.filter(|item| item.key == *key && item.ask.mode() == Mode::Counted);
    let wanted = wanted.map(|item| view_of(state, item));
    held.chain(wanted).chain(stored(state, key)).map(View::kind).next()
}

/// The size given to a caller without one: the size that the live hold with the largest token
/// stated, else 1 in the kind of the key. Holds that share slots state no size.
fn followed(state: &Snapshot, key: &Key) -> View {
    let stated = |hold: &&HoldState| {
        hold.items.iter().find(|item| item.key == *key && !item.shared).and_then(|it| it.stated)
    };
    let latest = state.holds.iter().filter(|hold| stated(hold).is_some()).max_by_key(|h| h.token);
    latest.and_then(|hold| stated(&hold)).unwrap_or(match kind_of(state, key) {
        Some(Kind::Buckets) => View::Buckets { per: 1, buckets: 1 },
        Some(Kind::Slots) | None => View::Slots { slots: 1 },
    })
}

/// A request in the form in which it is applied.
pub(super) fn applied(state: &Snapshot, asked: &Request) -> Request {
    let mut applied = asked.clone();
    for item in &mut applied.items {
        if let Ask::Counted { view: None, given, .. } = &mut item.ask {
            let followed = followed(state, &item.key);
            *given = (followed != View::Slots { slots: 1 }).then_some(followed);
        }
    }
    applied
}

/// Whether a slot is out of service for requests with a view: its bucket is, or for the slots kind
/// the slot itself.
fn is_out(state: &Snapshot, key: &Key, view: View, slot: u64) -> bool {
    let settings = state.settings.get(key);
    settings.is_some_and(|it| it.without.0.contains(&view.bucket(slot).unwrap_or(slot)))
}

/// The number of slots in service.
fn capacity(state: &Snapshot, item: &Item) -> u64 {
    let view = view_of(state, item);
    (0..view.capacity()).filter(|slot| !is_out(state, &item.key, view, *slot)).count() as u64
}

/// The held slots of a key.
fn held_slots(state: &Snapshot, key: &Key) -> BTreeSet<u64> {
    let items = state.holds.iter().flat_map(|hold| &hold.items).filter(|item| item.key == *key);
    items.flat_map(|item| item.slots.iter()).collect()
}

/// The slots that a request gets that can be granted: a single one from the bucket with the fewest
/// held slots if the request is to be spread, else the lowest ones.
pub(super) fn chosen(state: &Snapshot, item: &Item) -> Vec<u64> {
    let Some((count, _)) = item.ask.counted() else { return Vec::new() };
    let (view, held) = (view_of(state, item), held_slots(state, &item.key));
    let free = (0..view.capacity())
        .filter(|slot| !held.contains(slot) && !is_out(state, &item.key, view, *slot));
    if item.ask.is_spread() && count == 1 && view.kind() == Kind::Buckets {
        let in_bucket = |slot: u64| {
            held.iter().filter(|other| view.bucket(**other) == view.bucket(slot)).count()
        };
        return free.min_by_key(|slot| (in_bucket(*slot), *slot)).into_iter().collect();
    }
    free.take(usize::try_from(count).unwrap()).collect()
}

pub(super) fn shares(state: &Snapshot, asker: &Asker<'_>, item: &Item) -> bool {
    let Ask::Counted { count, .. } = item.ask else { return false };
    let lineage = lineage(state, asker);
    view_of(state, item).kind() == Kind::Slots
        && state.holds.iter().filter(|hold| lineage.contains(&hold.frame)).any(|hold| {
            hold.items.iter().any(|held| {
                held.key == item.key
                    && held.mode == Mode::Counted
                    && held.view.map(View::kind) == Some(Kind::Slots)
                    && held.slots.count() >= count
            })
        })
}

fn comparable(one: &Key, other: &Key) -> bool {
    one.covers(other) || other.covers(one)
}

pub(super) fn conflict(key: &Key, mode: Mode, other: &Key, other_mode: Mode) -> bool {
    comparable(key, other) && (mode == Mode::Write || other_mode == Mode::Write)
}

/// Whether a hold of the requester's lineage blocks every competitor for an item.
fn covers(state: &Snapshot, asker: &Asker<'_>, item: &Item) -> bool {
    let lineage = lineage(state, asker);
    let own = state.holds.iter().filter(|hold| lineage.contains(&hold.frame));
    own.flat_map(|hold| &hold.items).any(|held| {
        held.key.covers(&item.key) && (held.mode == Mode::Write || item.ask.mode() != Mode::Write)
    })
}

/// The reasons why a request can never fit unless someone resizes or resumes a key. A request that
/// shares its frame's slots has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Never {
    Paused,
    Empty,
    TooLarge,
}

pub(super) fn never(state: &Snapshot, asker: &Asker<'_>) -> Option<Never> {
    let nevers = asker.asked.items.iter().filter_map(|item| {
        let Ask::Counted { count, .. } = item.ask else { return None };
        let capacity = capacity(state, item);
        match (shares(state, asker, item), is_paused(state, &item.key)) {
            (true, _) => None,
            (false, true) => Some(Never::Paused),
            (false, false) if capacity == 0 => Some(Never::Empty),
            (false, false) => (count > capacity).then_some(Never::TooLarge),
        }
    });
    nevers.min()
}

pub(super) fn own_deadlock(state: &Snapshot, asker: &Asker<'_>) -> bool {
    let lineage = lineage(state, asker);
    never(state, asker) != Some(Never::Paused)
        && asker.asked.items.iter().any(|item| {
            let Ask::Counted { count, .. } = item.ask else { return false };
            let holds = state.holds.iter().filter(|hold| lineage.contains(&hold.frame));
            let items = holds.flat_map(|hold| &hold.items).filter(|held| held.key == item.key);
            let slots: BTreeSet<u64> = items.flat_map(|held| held.slots.iter()).collect();
            let view = view_of(state, item);
            let own = slots.iter().filter(|it| !is_out(state, &item.key, view, **it)).count();
            let own = own as u64;
            !shares(state, asker, item) && own > 0 && own + count > capacity(state, item)
        })
}

/// A waiter that can never be granted at present keeps its place but blocks no other request.
pub(super) fn takes_part(state: &Snapshot, waiter: &WaiterState) -> bool {
    waiter.status != WaiterStatus::Suspended && never(state, &Asker::waiting(waiter)).is_none()
}

pub(super) fn fits(state: &Snapshot, item: &Item) -> bool {
    let Ask::Counted { count, .. } = item.ask else { return true };
    let (view, held) = (view_of(state, item), held_slots(state, &item.key));
    let held = held.iter().filter(|slot| !is_out(state, &item.key, view, **slot)).count();
    !is_paused(state, &item.key) && held as u64 + count <= capacity(state, item)
}

fn ahead(waiter: &WaiterState, asker: &Asker<'_>) -> bool {
    match (waiter.barrier, asker.barrier) {
        (true, false) => true,
        (false, true) => false,
        (true, true) => waiter.id < asker.id,
        (false, false) => (-waiter.request.priority, waiter.id) < (-asker.asked.priority, asker.id),
    }
}

/// Whether a waiter precedes a request, without the bypass.
pub(super) fn precedes(state: &Snapshot, waiter: &WaiterState, asker: &Asker<'_>) -> bool {
    if !takes_part(state, waiter) || waiter.id == asker.id || !ahead(waiter, asker) {
        return false;
    }
    asker.asked.items.iter().any(|item| {
        waiter.request.items.iter().any(|other| {
            let slots = bars_for_slots(state, waiter, asker, item, other);
            let (mode, other_mode) = (item.ask.mode(), other.ask.mode());
            let by_mode = conflict(&item.key, mode, &other.key, other_mode);
            slots || by_mode && !covers(state, asker, item) && !shares(state, asker, item)
        })
    })
}

fn bars_for_slots(
    state: &Snapshot,
    waiter: &WaiterState,
    asker: &Asker<'_>,
    item: &Item,
    other: &Item,
) -> bool {
    let both = item.ask.mode() == Mode::Counted && other.ask.mode() == Mode::Counted;
    if !both || item.key != other.key || shares(state, asker, item) {
        return false;
    }
    let capacity = |item: &Item| capacity(state, item);
    let excepted = !waiter.barrier && !fits(state, other) && capacity(item) > capacity(other);
    !excepted
}

/// The waiters that a grant overtakes: those that take part, came before its request, compete with
/// it for an item and do not precede it.
pub(super) fn passed(state: &Snapshot, asker: &Asker<'_>) -> BTreeSet<RequestId> {
    let competes = |item: &Item, other: &Item| {
        let (mode, other_mode) = (item.ask.mode(), other.ask.mode());
        let slots = (mode, other_mode) == (Mode::Counted, Mode::Counted) && item.key == other.key;
        let by_mode = conflict(&item.key, mode, &other.key, other_mode);
        !shares(state, asker, item) && (slots || by_mode && !covers(state, asker, item))
    };
    let passed = state.waiters.iter().filter(|waiter| {
        let mut items = asker.asked.items.iter();
        let competes =
            items.any(|item| waiter.request.items.iter().any(|other| competes(item, other)));
        competes
            && waiter.id < asker.id
            && takes_part(state, waiter)
            && !precedes(state, waiter, asker)
    });
    passed.map(|waiter| waiter.id).collect()
}

/// Whether no hold outside the lineage conflicts with the item.
fn is_unheld(state: &Snapshot, asker: &Asker<'_>, item: &Item) -> bool {
    let lineage = lineage(state, asker);
    let others = state.holds.iter().filter(|hold| !lineage.contains(&hold.frame));
    !others
        .flat_map(|hold| &hold.items)
        .any(|held| conflict(&held.key, held.mode, &item.key, item.ask.mode()))
}

pub(super) fn free(state: &Snapshot, asker: &Asker<'_>) -> bool {
    asker.asked.items.iter().all(|item| {
        is_unheld(state, asker, item) && (shares(state, asker, item) || fits(state, item))
    })
}

/// Whether a request can be granted; if it can, whether only by bypassing its own blockers.
pub(super) fn admissible(state: &Snapshot, asker: &Asker<'_>) -> Option<bool> {
    if !free(state, asker) {
        return None;
    }
    let predecessors: Vec<&WaiterState> =
        state.waiters.iter().filter(|waiter| precedes(state, waiter, asker)).collect();
    if predecessors.is_empty() {
        return Some(false);
    }
    let session = session(state, asker);
    let holds = state.holds.iter().any(|hold| root(state, hold.frame) == session);
    if !holds {
        return None;
    }
    let stuck = remainder(state, Some(session));
    predecessors.iter().all(|waiter| leads_to(&stuck, waiter.id, session)).then_some(true)
}
