//! The waits that one node reports.

use std::collections::{BTreeMap, BTreeSet};

use canal_core::{Above, FrameId, NodeId, Require, RunId, Snapshot};

/// The waits near some runs, as one node reports them. It names other runs, whose frames must be
/// read as well, from every node, until no new ones are named ([`named`]). Whether one frame is
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

/// The runs and frames that readings name; their waits must be read, too.
#[must_use]
pub fn named(readings: &[Reading]) -> (BTreeSet<RunId>, BTreeSet<(NodeId, FrameId)>) {
    let (mut runs, mut frames) = (BTreeSet::new(), BTreeSet::new());
    for member in readings.iter().flat_map(|reading| reading.members.values()) {
        runs.extend(member.part_of.iter().map(|part_of| part_of.run));
        match member.under {
            Some(Above::Run(run)) => drop(runs.insert(run)),
            Some(Above::Frame(node, frame)) => drop(frames.insert((node, frame))),
            None => {}
        }
    }
    (runs, frames)
}
