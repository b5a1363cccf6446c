//! Nodes: several daemons that a client asks for one lock. [`list`] resolves their names, [`link`]
//! reaches them, and [`pins`] checks that each is still the daemon that was first met.

pub mod lease;
pub mod link;
pub mod list;
pub mod pins;
pub mod ssh;
