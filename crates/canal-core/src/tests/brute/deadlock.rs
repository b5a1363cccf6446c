//! Finds by brute force which requests wait for which sessions, can never be granted, or are in a
//! deadlock.

use std::collections::BTreeSet;

use super::admission::{admissible, conflict, fits, free, precedes, shares, takes_part};
use super::{Asker, lineage, root};
use crate::*;

/// Whether a request waits for a session, directly or through others, if it waits at all.
pub(super) fn leads_to(state: &Snapshot, request: RequestId, session: FrameId) -> bool {
    let (mut next, mut seen) = (vec![request], BTreeSet::new());
    while let Some(id) = next.pop() {
        let Some(waiter) = state.waiters.iter().find(|waiter| waiter.id == id) else { continue };
        if root(state, waiter.frame) == session {
            return true;
        }
        if !seen.insert(id) {
            continue;
        }
        let asker = Asker::waiting(waiter);
        let before = state.waiters.iter().filter(|other| precedes(state, other, &asker));
        next.extend(before.map(|other| other.id));
        for (_, holder) in in_the_way(state, waiter) {
            if root(state, holder) == session {
                return true;
            }
            let others = state.waiters.iter();
            let inside = others.filter(|w| lineage(state, &Asker::waiting(w)).contains(&holder));
            next.extend(inside.map(|other| other.id));
        }
    }
    false
}

/// The requests that can never be granted, whatever happens to those granted on the way.
pub(in crate::tests) fn waiting_in_vain(state: &Snapshot) -> BTreeSet<RequestId> {
    ids(&remainder(state, None))
}

pub(super) fn ids(state: &Snapshot) -> BTreeSet<RequestId> {
    state.waiters.iter().map(|waiter| waiter.id).collect()
}

/// Admits every request that can be admitted; then ends every frame that can end; then lets every
/// request that can bypass its own blockers do so. It does each step for all at once, repeats it,
/// and takes a later step only when the earlier ones change nothing. It forgets admitted requests.
/// It admits and ends nothing of the session `frozen`; if there is one, no request bypasses its own
/// blockers.
pub(super) fn remainder(state: &Snapshot, frozen: Option<FrameId>) -> Snapshot {
    let plain = |state: &Snapshot, waiter: &WaiterState| {
        let asker = Asker::waiting(waiter);
        Some(root(state, waiter.frame)) != frozen
            && free(state, &asker)
            && !state.waiters.iter().any(|other| precedes(state, other, &asker))
    };
    let bypassed_blockers = |state: &Snapshot, waiter: &WaiterState| {
        frozen.is_none() && admissible(state, &Asker::waiting(waiter)).is_some()
    };
    let next = |state: &Snapshot| {
        let admitted = forget(state, plain).or_else(|| drop_holds(state, frozen));
        admitted.or_else(|| forget(state, bypassed_blockers))
    };
    let start = forget(state, |state, waiter| !takes_part(state, waiter));
    last(start.unwrap_or_else(|| state.clone()), next)
}

/// The requests that are in a deadlock, or wait for a lock held in one. It ignores the order of the
/// queues.
pub(super) fn deadlocked(state: &Snapshot) -> Snapshot {
    let free = |state: &Snapshot, waiter: &WaiterState| {
        !takes_part(state, waiter) || free(state, &Asker::waiting(waiter))
    };
    last(state.clone(), |state| forget(state, free).or_else(|| drop_holds(state, None)))
}

fn last(mut state: Snapshot, next: impl Fn(&Snapshot) -> Option<Snapshot>) -> Snapshot {
    while let Some(then) = next(&state) {
        state = then;
    }
    state
}

/// The state without the waiters that match `such`; `None` if none does.
pub(super) fn forget(
    state: &Snapshot,
    such: impl Fn(&Snapshot, &WaiterState) -> bool,
) -> Option<Snapshot> {
    let mut left = state.clone();
    left.waiters.retain(|waiter| !such(state, waiter));
    (left.waiters.len() < state.waiters.len()).then_some(left)
}

/// The state without the holds of frames in which no request waits; `None` if there are none.
fn drop_holds(state: &Snapshot, frozen: Option<FrameId>) -> Option<Snapshot> {
    let waiting = state.waiters.iter().filter(|waiter| takes_part(state, waiter));
    let stuck: BTreeSet<FrameId> =
        waiting.flat_map(|waiter| lineage(state, &Asker::waiting(waiter))).collect();
    let mut left = state.clone();
    left.holds
        .retain(|hold| Some(root(state, hold.frame)) == frozen || stuck.contains(&hold.frame));
    (left.holds.len() < state.holds.len()).then_some(left)
}

/// The holds of others that block a request.
pub(super) fn in_the_way(state: &Snapshot, waiter: &WaiterState) -> BTreeSet<(Token, FrameId)> {
    let asker = Asker::waiting(waiter);
    let lineage = lineage(state, &asker);
    let others = state.holds.iter().filter(|hold| !lineage.contains(&hold.frame));
    let slots_of_kin = |key: &Key| {
        let own = state.holds.iter().filter(|hold| lineage.contains(&hold.frame));
        let items = own.flat_map(|hold| &hold.items).filter(|item| item.key == *key);
        items.flat_map(|item| item.slots.iter()).collect::<BTreeSet<u64>>()
    };
    let keeps = |held: &HeldItem, item: &Item| {
        let full = !shares(state, &asker, item) && !fits(state, item);
        conflict(&held.key, held.mode, &item.key, item.ask.mode())
            || full
                && held.key == item.key
                && held.slots.iter().any(|slot| !slots_of_kin(&item.key).contains(&slot))
    };
    let keeping = others.filter(|hold| {
        let items = &waiter.request.items;
        hold.items.iter().any(|held| items.iter().any(|item| keeps(held, item)))
    });
    keeping.map(|hold| (hold.token, hold.frame)).collect()
}

/// Whether a request waits, through the holds of others, for its own frame or one that encloses it.
pub(super) fn is_on_a_cycle(stuck: &Snapshot, start: &WaiterState) -> bool {
    let line = |waiter: &WaiterState| lineage(stuck, &Asker::waiting(waiter));
    let mut next: Vec<FrameId> = in_the_way(stuck, start).iter().map(|by| by.1).collect();
    let mut seen = BTreeSet::new();
    while let Some(at) = next.pop() {
        if line(start).contains(&at) {
            return true;
        }
        if seen.insert(at) {
            let inside = stuck.waiters.iter().filter(|waiter| line(waiter).contains(&at));
            next.extend(inside.flat_map(|waiter| in_the_way(stuck, waiter)).map(|by| by.1));
        }
    }
    false
}
