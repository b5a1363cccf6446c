//! The processes that own holds, and the descendants that keep holds alive.
//!
//! Invariant: a process is identified by its pidfd, or by its pid together with properties that
//! distinguish it from the next process with that pid.

pub(super) mod descendants;
pub(super) mod holder_record;
pub(super) mod identity;
pub(super) mod lost_processes;
pub(super) mod owners;
