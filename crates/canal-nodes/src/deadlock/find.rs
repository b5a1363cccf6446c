//! Finds the deadlocks in the common part of two readings of the waits that nodes report, and
//! describes them.
//!
//! A reading names other runs, whose frames must be read as well, from every node, until no new
//! ones are named. Whether one frame is inside another is known only once all frames between the
//! two have been read.
//!
//! Tokens and numbers of requests are never reused. So everything in both readings existed all the
//! time between them, and all of it existed together at each moment after the first reading and
//! before the second. Everything in only one of them is left out: it counts as able to continue.

use std::collections::{BTreeMap, BTreeSet};

use super::union::{FrameName, RequestName, Union, Way};
use canal_core::{
    Above, By, Diverged, FrameId, HoldState, Key, Mode, NodeId, RequestId, Token, WaitFor,
    WaiterState, shortest_cycle,
};
use canal_protocol::{PartFound, WaitsFound};

/// Requests that wait for each other: none can continue until one of them gives way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// A shortest ring through the first victim, in the order of the waits. The last step's blocker
    /// waits in the first step.
    pub ring: Vec<Step>,
    /// The requests that can give way, in their order. The first is the youngest one that helps
    /// another by giving way. If the deadlock persists after `n` further looks, the `n`-th after it
    /// acts.
    pub victims: Vec<Victim>,
}

/// One step of a ring: a request waits for a key at a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The request.
    pub request: RequestName,
    /// The node at which it waits.
    pub node: NodeId,
    /// The name of the request there.
    pub id: RequestId,
    /// The key for which it waits.
    pub key: Key,
    /// The mode in which it wants the key.
    pub mode: Mode,
    /// The hold or the other request that blocks it there.
    pub by: By,
}

/// A request that can give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The request.
    pub request: RequestName,
    /// How it gives way.
    pub way: Way,
}

impl Deadlock {
    /// The request that must give way after this many looks found the same deadlock, including the
    /// first. `None` if fewer requests can.
    pub fn victim(&self, looks: usize) -> Option<Victim> {
        self.victims.get(looks.checked_sub(1)?).copied()
    }
}

/// The deadlocks in the common part of two readings, one for each set of requests that wait for
/// each other. The second reading must begin after the last answer of the first.
///
/// # Errors
/// A reading contradicts itself.
pub fn find(first: &[WaitsFound], second: &[WaitsFound]) -> Result<Vec<Deadlock>, Diverged> {
    find_in(&join(first, second))
}

/// The deadlocks in readings that were all taken at one moment.
///
/// # Errors
/// A reading contradicts itself.
pub fn find_in(readings: &[WaitsFound]) -> Result<Vec<Deadlock>, Diverged> {
    let mut rest = Union::of(readings)?;
    rest.reduce();
    let graph = Graph::of(&rest);
    let deadlocks = graph.knots().into_iter().filter_map(|knot| deadlock(&rest, &graph, &knot));
    Ok(deadlocks.collect())
}

/// The deadlock of requests that wait for each other.
fn deadlock(rest: &Union<'_>, graph: &Graph, knot: &BTreeSet<RequestName>) -> Option<Deadlock> {
    // The client of a request looks for deadlocks over nodes if it asks at several nodes, or under
    // a run that does.
    let is_run = |frame: &FrameName| matches!(frame, FrameName::Run(_));
    let looks = |request: &RequestName| rest.frames_around(*request).iter().any(is_run);
    let mut able: Vec<RequestName> = knot.iter().copied().filter(looks).collect();
    able.sort_unstable_by_key(|request| std::cmp::Reverse(rest.age(*request)));
    let helpful = |request: &RequestName| {
        let mut ways = [Way::Surrender, Way::Refusal].into_iter();
        let way =
            ways.find(|way| rest.helped_by(*request, *way).iter().any(|it| knot.contains(it)));
        Some(Victim { request: *request, way: way? })
    };
    let mut victims: Vec<Victim> = able.iter().filter_map(helpful).collect();
    if victims.is_empty() {
        // One alone does not help: they must give way one after the other.
        victims.extend(able.iter().map(|request| Victim { request: *request, way: Way::Refusal }));
    }
    let through = victims.first().map(|victim| victim.request).or(knot.first().copied())?;
    Some(Deadlock { ring: graph.ring(through)?, victims })
}

/// The waits between the requests that remain.
struct Graph {
    /// The steps of each request, each with the requests that must continue before it can be taken.
    steps: BTreeMap<RequestName, Vec<(Step, Vec<RequestName>)>>,
}

impl Graph {
    /// The waits of what remains.
    fn of(rest: &Union<'_>) -> Self {
        let mut inside: BTreeMap<FrameName, Vec<RequestName>> = BTreeMap::new();
        for request in rest.requests() {
            for frame in rest.frames_around(request) {
                inside.entry(frame).or_default().push(request);
            }
        }
        let steps_of = |request: RequestName| {
            let mut steps = Vec::new();
            for (node, id) in rest.parts(request) {
                let Some(waiter) = node.table.waiter(id) else { continue };
                for WaitFor { item, key, by, .. } in node.table.blockers(id) {
                    let next = match by {
                        By::Hold(_, frame) => inside.get(&node.name_of(frame)).cloned(),
                        By::Waiter(other, frame) => Some(vec![node.name_in(frame, other)]),
                    };
                    let mode = waiter.request.items[item].ask.mode();
                    let step = Step { request, node: node.id, id, key, mode, by };
                    steps.push((step, next.unwrap_or_default()));
                }
            }
            steps
        };
        Self { steps: rest.requests().map(|request| (request, steps_of(request))).collect() }
    }

    /// The requests that a request waits for, directly or through others. The request itself is
    /// among them only if it is in a ring.
    fn reached(&self, from: RequestName) -> BTreeSet<RequestName> {
        let (mut reached, mut left) = (BTreeSet::new(), vec![from]);
        while let Some(request) = left.pop() {
            let next = self.steps.get(&request).into_iter().flatten().flat_map(|(_, next)| next);
            left.extend(next.copied().filter(|next| reached.insert(*next)));
        }
        reached
    }

    /// The sets of requests that wait for each other.
    fn knots(&self) -> BTreeSet<BTreeSet<RequestName>> {
        let reached: BTreeMap<RequestName, BTreeSet<RequestName>> =
            self.steps.keys().map(|request| (*request, self.reached(*request))).collect();
        let knot = |request: &RequestName| -> BTreeSet<RequestName> {
            let theirs = reached.get(request).into_iter().flatten();
            let waits_back =
                |other: &&RequestName| reached.get(other).is_some_and(|it| it.contains(request));
            theirs.filter(waits_back).copied().collect()
        };
        reached.keys().map(knot).filter(|knot| !knot.is_empty()).collect()
    }

    /// A shortest ring through a request, if it is in one.
    fn ring(&self, request: RequestName) -> Option<Vec<Step>> {
        let ring = shortest_cycle(request, |request| {
            let steps = self.steps.get(&request).into_iter().flatten();
            steps.map(|(step, next)| (step, next.as_slice())).collect()
        });
        Some(ring?.into_iter().cloned().collect())
    }
}

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
    let mut both = later.clone();
    both.table.waiters.retain(|waiter| {
        let mut items = waiter.request.items.iter();
        waited.get(&waiter.id).is_some_and(|it| is_same(it, waiter))
            && items
                .all(|it| earlier.table.settings.get(&it.key) == later.table.settings.get(&it.key))
            && before.get(&waiter.frame) == now.get(&waiter.frame)
    });
    both.table.holds.retain_mut(|hold| {
        let earlier = held.get(&hold.token).filter(|it| it.frame == hold.frame);
        let was_held =
            |key: &Key| earlier.is_some_and(|it| it.items.iter().any(|item| item.key == *key));
        // The items of a hold can only become fewer.
        hold.items.retain(|item| was_held(&item.key));
        !hold.items.is_empty()
    });
    both
}

/// The run over nodes to which each frame belongs, and what it claims to be within.
fn memberships(found: &WaitsFound) -> BTreeMap<FrameId, (Option<&PartFound>, Option<Above>)> {
    found.frames.iter().map(|it| (it.frame, (it.part_of.as_ref(), it.above()))).collect()
}

/// Whether a request still waits as before.
fn is_same(before: &WaiterState, now: &WaiterState) -> bool {
    before.frame == now.frame && before.status == now.status && before.barrier == now.barrier
}
