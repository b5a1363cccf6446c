//! The common part of two readings.
//!
//! Tokens and numbers of requests are never reused. So everything in both readings existed all the
//! time between them, and all of it existed together at each moment after the first reading and
//! before the second. Everything in only one of them is left out: it counts as able to continue.

use std::collections::BTreeMap;

use super::reading::Reading;
use canal_core::{
    HeldItem, HoldState, Key, RequestId, Snapshot, StoredWithout, Token, View, WaiterState,
};

/// The common part of two readings, node by node. The second one must begin after the last answer
/// of the first.
#[must_use]
pub fn join(first: &[Reading], second: &[Reading]) -> Vec<Reading> {
    let both = second.iter().filter_map(|later| {
        let earlier = first.iter().find(|earlier| earlier.node == later.node)?;
        Some(join_node(earlier, later))
    });
    both.collect()
}

fn join_node(earlier: &Reading, later: &Reading) -> Reading {
    let before = Before::of(&earlier.table);
    let now = Sizes::of(&later.table);
    let waits_still = |waiter: &&WaiterState| {
        before.waiters.get(&waiter.id).is_some_and(|it| is_same(it, waiter))
            && waiter
                .request
                .items
                .iter()
                .all(|item| before.sizes.of_key(&item.key) == now.of_key(&item.key))
            && earlier.members.get(&waiter.frame) == later.members.get(&waiter.frame)
    };
    let waiters = later.table.waiters.iter().filter(waits_still).cloned().collect();
    let holds = later.table.holds.iter().filter_map(|hold| {
        let earlier = before.holds.get(&hold.token).filter(|it| it.frame == hold.frame)?;
        still_held(earlier, hold)
    });
    let table = Snapshot { waiters, holds: holds.collect(), ..later.table.clone() };
    Reading { node: later.node, table, members: later.members.clone() }
}

/// Whether a request still waits as before.
fn is_same(before: &WaiterState, now: &WaiterState) -> bool {
    before.frame == now.frame && before.status == now.status && before.barrier == now.barrier
}

/// The rest of a hold. Its items can only become fewer.
fn still_held(before: &HoldState, now: &HoldState) -> Option<HoldState> {
    let was_held = |item: &&HeldItem| before.items.iter().any(|it| it.key == item.key);
    let items: Vec<HeldItem> = now.items.iter().filter(was_held).cloned().collect();
    (!items.is_empty()).then(|| HoldState { items, ..now.clone() })
}

/// The contents of the earlier reading of a node.
struct Before<'a> {
    waiters: BTreeMap<RequestId, &'a WaiterState>,
    holds: BTreeMap<Token, &'a HoldState>,
    sizes: Sizes<'a>,
}

impl<'a> Before<'a> {
    fn of(table: &'a Snapshot) -> Self {
        Self {
            waiters: table.waiters.iter().map(|waiter| (waiter.id, waiter)).collect(),
            holds: table.holds.iter().map(|hold| (hold.token, hold)).collect(),
            sizes: Sizes::of(table),
        }
    }
}

/// The stored sizes of a table, its paused keys, and what is out of service.
struct Sizes<'a> {
    views: BTreeMap<&'a Key, View>,
    paused: &'a [Key],
    without: &'a [StoredWithout],
}

impl<'a> Sizes<'a> {
    fn of(table: &'a Snapshot) -> Self {
        let views = table.views.iter().map(|stored| (&stored.key, stored.view)).collect();
        Self { views, paused: &table.paused, without: &table.without }
    }

    fn of_key(&self, key: &Key) -> (Option<View>, bool, Option<&StoredWithout>) {
        let without = self.without.iter().find(|without| without.key == *key);
        (self.views.get(key).copied(), self.paused.contains(key), without)
    }
}
