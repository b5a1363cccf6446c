//! The daemon's files, and the other daemons of the machine.

pub(super) mod claim;
pub(super) mod locks;
pub(super) mod other_daemons;
