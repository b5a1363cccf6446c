//! The programs on the simulated machines: canal's commands as the daemon sees them, and the
//! commands that they run under a lock.

pub(super) mod claims;
mod conversation;
pub(super) mod plan;
pub(super) mod program;
