//! The waits that one node reports, and the common part of two readings.
//!
//! Tokens and numbers of requests are never reused. So everything in both readings existed all the
//! time between them, and all of it existed together at each moment after the first reading and
//! before the second. Everything in only one of them is left out: it counts as able to continue.

use std::collections::BTreeMap;

use canal_core::{
    Above, FrameId, HeldItem, HoldState, Key, NodeId, RequestId, Require, RunId, Snapshot,
    StoredWithout, Token, View, WaiterState,
};

/// The waits near some runs, as one node reports them. It names other runs, whose frames must be
/// read as well, from every node, until no new ones are named. Whether one frame is
/// inside another is known only once all frames between the two have been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The node.
    pub node: NodeId,
    /// The frames of these runs and those under them, and everything that their requests can wait
    /// for ([`Table::partial_table`](canal_core::Table::partial_table)).
    pub table: Snapshot,
    /// The membership of its frames. A frame that belongs to no run over nodes is missing.
    pub members: BTreeMap<FrameId, Membership>,
}

/// The run over nodes to which a frame of one node belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// For a lease over nodes: the request of which it is a part.
    pub part_of: Option<PartOf>,
    /// The enclosing run or frame, as its client claims. It authorises nothing.
    pub under: Option<Above>,
}

/// A request over nodes, as each of its parts describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartOf {
    /// The request.
    pub run: RunId,
    /// All its nodes.
    pub nodes: Vec<NodeId>,
    /// The number of nodes that must grant it.
    pub require: Require,
    /// Whether this part is an unconfirmed spare. The node takes it back for any request that would
    /// then fit, so it blocks none.
    pub is_loose: bool,
}

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
