//! Nodes: several daemons that a client asks for one lock. [`link`] reaches them, and
//! [`known_nodes`] checks that each is still the daemon that was first met.

pub mod known_nodes;
pub mod lease;
pub mod link;
pub mod ssh;
