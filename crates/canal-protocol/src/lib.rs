//! The messages between clients and the daemon.
//!
//! The convention is varlink's: JSON objects, each ended by a NUL byte, over a Unix stream socket.
//! `interface/io.canal.Lock.varlink` describes the interface, `interface/io.canal.Nodes.varlink`
//! that of requests over nodes; the types in `messages` are their Rust form.
//!
//! Invariant: new fields are optional and unknown ones are ignored, so that an old client can talk
//! to a new daemon and vice versa.

pub mod frame;
mod messages;
pub mod node_address;
pub mod paths;
pub mod service;

pub use canal_core::{
    GROUP_BYTES_MAX, Kind, Mode, NOTE_BYTES_MAX, NodeId, OnLost, Require, RunId, Superseded, Tag,
};
pub use messages::*;
pub use node_address::{Node, NodeFailure};
pub use service::{INTERFACE, INTERFACE_DESCRIPTION, NODES_DESCRIPTION, NODES_INTERFACE};

/// The environment variable of a command over an engine, and of its descendants: the tags of its
/// holds, separated by blanks, that of the outermost `canal run` first. With it, the daemon finds
/// the remaining processes of a command whose hold is lost.
pub const HOLD_VARIABLE: &str = "CANAL_HOLD";

/// Keeps the tests apart from the user's environment and processes.
#[cfg(test)]
#[path = "../../../tests/fixtures/isolation.rs"]
mod isolation;
