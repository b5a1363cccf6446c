//! What one node says about waits.

use std::collections::{BTreeMap, BTreeSet};

use crate::core::{Above, FrameId, NodeId, Require, RunId, Snapshot};

/// What one node says about the waits near some runs. It names other runs; their frames are to be read
/// as well, from every node, until no new ones are named ([`named`]): a frame is known to be inside
/// another one only if all frames between are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The node.
    pub node: NodeId,
    /// The frames of these runs and those under them, and what their requests can wait for
    /// ([`Table::excerpt`](crate::core::Table::excerpt)).
    pub table: Snapshot,
    /// What the frames in it belong to; a frame that belongs to no run over nodes is missing.
    pub members: BTreeMap<FrameId, Membership>,
}

/// What a frame of one node belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Of a lease over nodes: the request of which it is a part.
    pub part_of: Option<PartOf>,
    /// What encloses it, as its client says. It authorises nothing.
    pub under: Option<Above>,
}

/// A request over nodes, as each part of it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartOf {
    /// The request.
    pub run: RunId,
    /// All its nodes.
    pub nodes: Vec<NodeId>,
    /// How many of them have to grant it.
    pub require: Require,
    /// Whether this part is a spare that is not confirmed: the node takes it back for any request that
    /// would then fit, so it blocks none.
    pub is_loose: bool,
}

/// The runs and frames that readings name: those whose waits are to be read, too.
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
