//! Which requests can be granted.

use std::collections::BTreeSet;

use super::deadlock::{leads_to, remainder};
use super::{Asker, lineage, root, session};
use crate::core::*;

/// Own views of locks in use, and what a bare idle request gets.
fn view_of(state: &Snapshot, key: &Key, stated: Option<View>) -> View {
    if let Some(view @ View::Buckets { .. }) = stated {
        return view;
    }
    let find = |views: &[StoredView]| views.iter().find(|v| v.key == *key).map(|v| v.view);
    let mine = find(&state.in_use).or_else(|| find(&state.views));
    mine.or(stated).unwrap_or(View::Slots { slots: 1 })
}

fn counted(item: &Item) -> (u64, Option<View>) {
    match item.ask {
        Ask::Counted { count, view } => (count, view),
        Ask::Read | Ask::Write => panic!("nothing else is granted"),
    }
}

fn held(state: &Snapshot, key: &Key) -> u64 {
    let items = state.holds.iter().flat_map(|hold| &hold.items).filter(|item| item.key == *key);
    items.flat_map(|item| item.slots.iter()).collect::<BTreeSet<u64>>().len() as u64
}

pub(super) fn shares(state: &Snapshot, asker: &Asker<'_>, item: &Item) -> bool {
    let Ask::Counted { count, view: stated } = item.ask else { return false };
    let lineage = lineage(state, asker);
    view_of(state, &item.key, stated).kind() == Kind::Slots
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

pub(super) fn own_deadlock(state: &Snapshot, asker: &Asker<'_>) -> bool {
    let lineage = lineage(state, asker);
    asker.asked.items.iter().any(|item| {
        let Ask::Counted { count, view: stated } = item.ask else { return false };
        let holds = state.holds.iter().filter(|hold| lineage.contains(&hold.frame));
        let items = holds.flat_map(|hold| &hold.items).filter(|held| held.key == item.key);
        let slots: BTreeSet<u64> = items.flat_map(|held| held.slots.iter()).collect();
        let own = slots.len() as u64;
        let capacity = view_of(state, &item.key, stated).capacity();
        !shares(state, asker, item) && own > 0 && own + count > capacity
    })
}

pub(super) fn parked(state: &Snapshot, waiter: &WaiterState) -> bool {
    waiter.request.items.iter().any(|item| {
        let Ask::Counted { count, view: stated } = item.ask else { return false };
        let follows = !matches!(stated, Some(View::Buckets { .. }));
        follows && count > view_of(state, &item.key, stated).capacity()
    })
}

pub(super) fn takes_part(state: &Snapshot, waiter: &WaiterState) -> bool {
    waiter.status != WaiterStatus::Suspended && !parked(state, waiter)
}

pub(super) fn fits(state: &Snapshot, item: &Item) -> bool {
    let Ask::Counted { count, view: stated } = item.ask else { return true };
    held(state, &item.key).saturating_add(count) <= view_of(state, &item.key, stated).capacity()
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
    let capacity = |item: &Item| view_of(state, &item.key, counted(item).1).capacity();
    let excepted = !waiter.barrier && !fits(state, other) && capacity(item) > capacity(other);
    !excepted
}

/// Whether no hold outside the lineage conflicts.
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

/// Whether a request can be granted, and if so, whether only by passing own blockers.
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
