//! The interface descriptions for varlink clients.
//!
//! Invariant: the types of `messages` write and read exactly the described messages; tests compare
//! the two.

/// The name of the interface.
pub const INTERFACE: &str = "io.canal.Lock";

/// The interface description, as `org.varlink.service.GetInterfaceDescription` returns it.
pub const INTERFACE_DESCRIPTION: &str = include_str!("io.canal.Lock.varlink");

/// The name of the interface that requests over nodes use.
pub const NODES_INTERFACE: &str = "io.canal.Nodes";

/// The description of the interface that requests over nodes use.
pub const NODES_DESCRIPTION: &str = include_str!("io.canal.Nodes.varlink");

/// The description of the interface that every varlink service has.
pub(super) const SERVICE_DESCRIPTION: &str = include_str!("org.varlink.service.varlink");
