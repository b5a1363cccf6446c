//! What frames and requests are called over all nodes.

use crate::core::{FrameId, NodeId, RequestId, RunId};

/// A frame, over all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrameName {
    /// That of a run over nodes.
    Run(RunId),
    /// Another one, of one node.
    Plain(NodeId, FrameId),
}

/// A request that waits, over all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequestName {
    /// A request over nodes.
    Run(RunId),
    /// Another one, at one node.
    Plain(NodeId, RequestId),
}
