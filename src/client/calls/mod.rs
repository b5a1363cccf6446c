//! The calls of a client, by how their answers come.
//!
//! Invariant: a call that must not be done twice is not sent twice unless the daemon cannot have
//! done it.

pub(super) mod acquire;
pub(super) mod deadline_page;
pub(super) mod release;
pub(super) mod single_reply;
pub(super) mod stop;
pub(super) mod watch;
