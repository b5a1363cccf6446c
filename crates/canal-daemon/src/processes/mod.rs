//! The processes that own holds, and the descendants that keep holds alive.
//!
//! Invariant: a process is identified by its pidfd, or by its pid together with properties that
//! distinguish it from the next process with that pid.

pub(super) mod children;
pub(super) mod descendants;
pub(super) mod fifo;
pub(super) mod holder;
pub(super) mod holder_record;
pub(super) mod lost_processes;
pub(super) mod other_namespace;
pub(super) mod owner_identity;
pub(super) mod owners;
pub(super) mod removable;
