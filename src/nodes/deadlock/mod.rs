//! Deadlocks between requests that wait at several nodes.
//!
//! Each node finds the deadlocks within its own table. One that goes over several nodes is found by
//! the clients in it: a client that waits under a run over nodes reads, from every node that it can
//! reach, the part of the table that can be reached from its waits ([`Reading`]), twice. What both
//! readings have in common was there at one moment, between the last answer of the first and the
//! first answer of the second (`join`). On it, the client lets everything go on that can: it ends
//! every frame in which nothing waits, and grants every request that its node could then grant,
//! by the node's own rules. What remains is a deadlock ([`find`]). [`Looker`] says when to read, and who
//! gives way.
//!
//! Invariant: nothing is called a deadlock that can still go on by itself. A node that cannot be
//! reached, a request that is between two nodes, and whatever changed between the two readings count
//! as going on.
//!
//! The order of service counts here, although it plays no part within one table: a node lets a
//! request go before a waiter that waits for that request's own session only if it knows so, and it
//! knows its own table only.

mod graph;
mod join;
mod looker;
mod name;
mod reading;
mod ring;
mod union;

use std::collections::BTreeSet;

use crate::core::Diverged;

pub use join::join;
pub use looker::{Looker, Named, Next};
pub use name::{FrameName, RequestName};
pub use reading::{Membership, PartOf, Reading, named};
pub use ring::{Blocked, Deadlock, Step, Victim, Way};

use graph::Graph;
use union::Union;

/// The deadlocks in what two readings have in common; one for each set of requests that wait for each
/// other. The second reading has to begin after the last answer of the first.
///
/// # Errors
/// A reading contradicts itself.
pub fn find(first: &[Reading], second: &[Reading]) -> Result<Vec<Deadlock>, Diverged> {
    find_in(&join(first, second))
}

/// The deadlocks in readings that were all taken at one moment.
///
/// # Errors
/// A reading contradicts itself.
pub fn find_in(readings: &[Reading]) -> Result<Vec<Deadlock>, Diverged> {
    let mut rest = Union::of(readings)?;
    rest.reduce();
    let graph = Graph::of(&rest);
    let deadlocks = graph.knots().into_iter().filter_map(|knot| deadlock(&rest, &graph, &knot));
    Ok(deadlocks.collect())
}

/// The deadlock of requests that wait for each other.
fn deadlock(rest: &Union, graph: &Graph, knot: &BTreeSet<RequestName>) -> Option<Deadlock> {
    let mut able: Vec<RequestName> =
        knot.iter().copied().filter(|request| rest.can_act(*request)).collect();
    able.sort_unstable_by_key(|request| std::cmp::Reverse(rest.age(*request)));
    let way = |request: &RequestName| {
        let helps =
            |way: Way| rest.helped_by(*request, way).iter().any(|other| knot.contains(other));
        let request = *request;
        [Way::Surrender, Way::Refusal]
            .into_iter()
            .find(|way| helps(*way))
            .map(|way| Victim { request, way })
    };
    let mut victims: Vec<Victim> = able.iter().filter_map(way).collect();
    if victims.is_empty() {
        // One alone does not help: they have to give way one after the other.
        victims.extend(able.iter().map(|request| Victim { request: *request, way: Way::Refusal }));
    }
    let through = victims.first().map(|victim| victim.request).or(knot.first().copied())?;
    Some(Deadlock { ring: graph.ring(through)?, victims })
}

#[cfg(test)]
mod tests;
