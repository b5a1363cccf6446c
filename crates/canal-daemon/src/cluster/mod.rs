//! Everything that only a daemon with an engine needs: this host is a member of a table that hosts
//! share.
//!
//! [`Cluster`](membership::Cluster) owns all of it. A daemon with the embedded journal has none.
//! [`Decide`](decide::Decide) owns the table and its log in either case. The rest of the daemon
//! asks only `Decide`.
//!
//! Invariant: no command outlives the time at which another host may be granted what the command
//! holds.

pub(super) mod decide;
pub(super) mod end_commands;
pub(super) mod engine;
pub(super) mod health;
pub(super) mod membership;
pub(super) mod sent_tokens;
pub(super) mod shared_marker;
pub(super) mod watcher;
pub(super) mod watcher_process;
