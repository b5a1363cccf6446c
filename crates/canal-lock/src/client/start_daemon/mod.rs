//! Starts a daemon where none runs.
//!
//! Invariant: of the clients that find no daemon, one starts it and the others wait. No client
//! starts daemons endlessly.

pub(super) mod attempt;
pub(super) mod open;
pub(super) mod program;
pub(super) mod service_manager;
pub(super) mod starts;
