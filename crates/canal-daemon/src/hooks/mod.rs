//! Hooks: programs from the configuration (`[[hooks]]`) that receive events.
//!
//! `server/observe.rs` finds the events after the replies of a turn are written. An `event_thread`
//! belongs to one hook: it takes events from a `backlog`, which is bounded and fair to users, and
//! runs the program for one event at a time, under a guard process that ends it
//! (`run_and_end_program`). The guard gives the program its `program_environment`.
//!
//! Invariants: no reply waits for a hook, and the daemon does nothing for hooks before the replies
//! of a turn are written. Text from users (keys, commands, notes) reaches the program only on its
//! standard input. No program of a hook outlives the daemon or its timeout.

pub(super) mod active_hooks;
pub(super) mod event;
mod event_backlog;
mod event_thread;
pub(super) mod program_environment;
pub(super) mod run_and_end_program;
