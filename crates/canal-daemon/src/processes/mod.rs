//! The processes that own holds, and the descendants that keep holds alive.
//!
//! Invariant: a process is identified by its pidfd, or by its pid together with properties that
//! distinguish it from the next process with that pid.

pub(super) mod find_descendants;
pub(super) mod holder_record;
pub(super) mod identify_owner;
pub(super) mod lost_processes;
pub(super) mod other_namespaces;
pub(super) mod watch_owners;
