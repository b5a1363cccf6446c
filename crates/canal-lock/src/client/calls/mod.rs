//! The calls of a client, grouped by the way in which their answers come.
//!
//! Invariant: the client repeats a call that must not take effect twice only if the daemon cannot
//! have carried it out.

pub(super) mod acquire;
pub(super) mod deadline_page;
pub(super) mod release;
pub(super) mod single_reply;
pub(super) mod stop;
pub(super) mod watch;
