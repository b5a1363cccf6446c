//! The common part of two readings of the waits that nodes report.
//!
//! A reading names other runs, whose frames must be read as well, from every node, until no new
//! ones are named. Whether one frame is inside another is known only once all frames between the
//! two have been read.
//!
//! Tokens and numbers of requests are never reused. So everything in both readings existed all the
//! time between them, and all of it existed together at each moment after the first reading and
//! before the second. Everything in only one of them is left out: it counts as able to continue.

use std::collections::BTreeMap;

use canal_core::{
    Above, FrameId, HeldItem, HoldState, Key, RequestId, Settings, Snapshot, Token, WaiterState,
};
use canal_protocol::{PartFound, WaitsFound};

/// The common part of two readings, node by node. The second one must begin after the last answer
/// of the first.
pub fn join(first: &[WaitsFound], second: &[WaitsFound]) -> Vec<WaitsFound> {
    let both = second.iter().filter_map(|later| {
        let earlier = first.iter().find(|earlier| earlier.node == later.node)?;
        Some(join_node(earlier, later))
    });
    both.collect()
}

fn join_node(earlier: &WaitsFound, later: &WaitsFound) -> WaitsFound {
    let waited: BTreeMap<RequestId, &WaiterState> =
        earlier.table.waiters.iter().map(|waiter| (waiter.id, waiter)).collect();
    let held: BTreeMap<Token, &HoldState> =
        earlier.table.holds.iter().map(|hold| (hold.token, hold)).collect();
    let (before, now) = (memberships(earlier), memberships(later));
    let waits_still = |waiter: &&WaiterState| {
        let mut items = waiter.request.items.iter();
        waited.get(&waiter.id).is_some_and(|it| is_same(it, waiter))
            && items.all(|it| settings_of(earlier, &it.key) == settings_of(later, &it.key))
            && before.get(&waiter.frame) == now.get(&waiter.frame)
    };
    let waiters = later.table.waiters.iter().filter(waits_still).cloned().collect();
    let holds = later.table.holds.iter().filter_map(|hold| {
        let earlier = held.get(&hold.token).filter(|it| it.frame == hold.frame)?;
        still_held(earlier, hold)
    });
    let table = Snapshot { waiters, holds: holds.collect(), ..later.table.clone() };
    WaitsFound { table, ..later.clone() }
}

/// The run over nodes to which each frame belongs, and what it claims to be within.
fn memberships(found: &WaitsFound) -> BTreeMap<FrameId, (Option<&PartFound>, Option<Above>)> {
    found.frames.iter().map(|it| (it.frame, (it.part_of.as_ref(), it.above()))).collect()
}

fn settings_of<'f>(found: &'f WaitsFound, key: &Key) -> Option<&'f Settings> {
    found.table.settings.get(key)
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
