//! The daemon's files, and the other daemons of the machine.

pub(super) mod bind_socket;
pub(super) mod claim;
pub(super) mod instance_lock;
pub(super) mod other_daemons;
