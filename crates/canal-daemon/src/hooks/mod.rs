//! Hooks: programs from the configuration (`[[hooks]]`) that receive events.
//!
//! `server/observe.rs` finds the events after the replies of a turn are written. A
//! `runner` is the thread of one hook: it takes events from a `backlog`, which is bounded and fair
//! to users, and runs the program for one event at a time, under a `guard` process that ends it.
//!
//! Invariants: no reply waits for a hook, and the daemon does nothing for hooks before the replies
//! of a turn are written. Text from users (keys, commands, notes) reaches the program only on its
//! standard input. No program of a hook outlives the daemon or its timeout.

pub(super) mod configured;
pub(super) mod event;
pub(super) mod guard;
mod runner;
