//! Finds deadlocks between requests that wait at several nodes.
//!
//! A node finds only deadlocks within its own table. For the others, a client that waits under a
//! run over nodes reads twice, from every node in reach, the part of the table that its waits reach
//! ([`Reading`]). The common part (`join`) existed at one moment. On it the client ends every frame
//! without waits and grants every request that its node's own rules allow. The rest is a deadlock
//! ([`find`]). [`Detector`] decides when to read, and which request gives way.
//!
//! Invariant: anything that can still continue by itself is no deadlock. A node out of reach, a
//! request between two nodes, and everything that changed between the two readings count as able to
//! continue.
//!
//! The order of service counts here, although it does not within one table. A node lets a request
//! overtake a waiter that waits for the request's own session only if it knows of that wait, and it
//! knows only its own table.

mod detector;
mod graph;
mod join;
mod name;
mod reading;
mod ring;
mod union;

use std::collections::BTreeSet;

use canal_core::Diverged;

pub use detector::{Detector, Named, Next};
pub use join::join;
pub use name::{FrameName, RequestName};
pub use reading::{Membership, PartOf, Reading, named};
pub use ring::{Blocked, Deadlock, Step, Victim, Way};

use graph::Graph;
use union::Union;

/// The deadlocks in the common part of two readings, one for each set of requests that wait for
/// each other. The second reading must begin after the last answer of the first.
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
        // One alone does not help: they must give way one after the other.
        victims.extend(able.iter().map(|request| Victim { request: *request, way: Way::Refusal }));
    }
    let through = victims.first().map(|victim| victim.request).or(knot.first().copied())?;
    Some(Deadlock { ring: graph.ring(through)?, victims })
}

#[cfg(test)]
mod tests;
