//! The programs on the simulated machines: canal's commands as the daemon sees them, and the
//! commands that they run under a lock.

mod conversation;
pub(super) mod plan;
pub(super) mod program;
pub(super) mod received_grants;
