//! The table in the form that clients see.
//!
//! Invariant: only the user of a process and root can see its command and its working directory.

pub(super) mod holder;
pub(super) mod size_notes;
pub(super) mod status_keys;
pub(super) mod visible_table;
