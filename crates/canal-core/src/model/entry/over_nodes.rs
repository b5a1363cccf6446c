//! A request over nodes: several independent daemons, each of which grants its part.

use serde::{Deserialize, Serialize};

use crate::{FrameId, NodeId, RunId};

/// The fields that only a request over nodes has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverNodes {
    /// The run: the request over all its nodes. Public; it authorises nothing.
    pub run: RunId,
    /// All nodes that it names, ascending, each once.
    pub nodes: Vec<NodeId>,
    /// How many of them must grant it.
    pub require: Require,
    /// Whether enough other nodes have already granted it. A spare part never waits and blocks no
    /// other request; while it is provisional, it is taken back if another request would then fit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spare: bool,
}

/// How many nodes must grant a request over nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Require {
    /// Each of them.
    All,
    /// More than half of them.
    Majority,
    /// One of them. It excludes no other request over nodes.
    Any,
}

/// A run or frame that encloses a request beyond its table. A client's claim, which is trusted
/// unless the node knows better: a false claim gains nothing, and can only harm a request in that
/// run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Above {
    /// A run over nodes.
    Run(RunId),
    /// A frame of a daemon that is also a node.
    Frame(NodeId, FrameId),
}

/// The most nodes that a request over nodes may name.
pub const NODES_MAX: usize = 64;

/// The largest token that a confirmation may ask for: 2^52, which every JSON reader represents
/// exactly.
pub const CONFIRMED_TOKEN_MAX: u64 = 1 << 52;

impl Require {
    /// How many of `nodes` must grant the request.
    #[must_use]
    pub fn least(self, nodes: usize) -> usize {
        match self {
            Self::All => nodes,
            Self::Majority => nodes / 2 + 1,
            Self::Any => 1,
        }
    }
}

impl OverNodes {
    /// How many of its nodes must grant it.
    #[must_use]
    pub fn least(&self) -> usize {
        self.require.least(self.nodes.len())
    }

    /// Whether there is at least one node, and the nodes are ascending, each once.
    #[must_use]
    pub fn is_sorted(&self) -> bool {
        !self.nodes.is_empty() && self.nodes.windows(2).all(|pair| pair[0] < pair[1])
    }

    /// Whether every set of nodes that is enough for one of two requests shares a node with every
    /// set that is enough for the other. Only then do the requests exclude each other.
    #[must_use]
    pub fn always_meets(&self, other: &Self) -> bool {
        let also = self.nodes.iter().filter(|node| !other.nodes.contains(node)).count();
        self.least() + other.least() > other.nodes.len() + also
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(nodes: &[u128], require: Require) -> OverNodes {
        let nodes = nodes.iter().map(|node| NodeId(*node)).collect();
        OverNodes { run: RunId(1), nodes, require, spare: false }
    }

    /// All choices of the least number of nodes.
    fn quorums(of: &OverNodes) -> Vec<Vec<NodeId>> {
        let all = 0..1_usize << of.nodes.len();
        let chosen = |set: usize| {
            let nodes = of.nodes.iter().enumerate();
            nodes.filter(|(at, _)| set >> at & 1 == 1).map(|(_, node)| *node).collect::<Vec<_>>()
        };
        all.map(chosen).filter(|nodes| nodes.len() == of.least()).collect()
    }

    #[test]
    fn two_lists_always_meet_just_if_no_two_quorums_are_disjoint() {
        let mut apart = 0;
        for one in 1_u32..32 {
            for other in 1_u32..32 {
                let list = |set: u32| (0..5).filter(|at| set >> at & 1 == 1).collect::<Vec<u128>>();
                for (left, right) in [
                    (Require::Majority, Require::Majority),
                    (Require::All, Require::Majority),
                    (Require::All, Require::All),
                ] {
                    let one = over(&list(one), left);
                    let other = over(&list(other), right);
                    let disjoint = quorums(&one).iter().any(|these| {
                        quorums(&other)
                            .iter()
                            .any(|those| !these.iter().any(|it| those.contains(it)))
                    });
                    assert_eq!(one.always_meets(&other), !disjoint, "{one:?} {other:?}");
                    apart += usize::from(disjoint);
                }
            }
        }
        assert!(apart > 0);
        let (abc, abd) = ([1, 2, 3], [1, 2, 4]);
        assert!(!over(&abc, Require::Majority).always_meets(&over(&abd, Require::Majority)));
    }

    #[test]
    fn a_list_is_in_order_and_names_each_node_once() {
        for (nodes, sorted) in [(&[][..], false), (&[1], true), (&[1, 1], false), (&[2, 1], false)]
        {
            assert_eq!(over(nodes, Require::All).is_sorted(), sorted, "{nodes:?}");
        }
    }
}
