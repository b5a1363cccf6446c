//! Everything that only a daemon with an engine needs: this host is a member of a table that hosts
//! share.
//!
//! [`Cluster`](member_and_engine::Cluster) owns all of it. A daemon with the embedded journal has
//! none. [`Decide`](journal_or_engine::Decide) owns the table and its log in either case. The rest
//! of the daemon asks only `Decide`.
//!
//! Invariant: no command outlives the time at which another host may be granted what the command
//! holds.

pub(super) mod choose_engine;
pub(super) mod daemon_watcher;
pub(super) mod end_commands;
pub(super) mod engine_required;
pub(super) mod health;
pub(super) mod journal_or_engine;
pub(super) mod member_and_engine;
pub(super) mod sent_tokens;
