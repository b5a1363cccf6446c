//! The names of frames and requests over all nodes.

use canal_core::{FrameId, NodeId, RequestId, RunId};

/// A frame, over all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrameName {
    /// The frame of a run over nodes.
    Run(RunId),
    /// Any other frame, at one node.
    Plain(NodeId, FrameId),
}

/// A request that waits, over all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequestName {
    /// A request over nodes.
    Run(RunId),
    /// Any other request, at one node.
    Plain(NodeId, RequestId),
}
