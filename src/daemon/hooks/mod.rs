//! Hooks: programs that the configuration names, and that are told what happened (`[[hooks]]`).
//!
//! `server/hooks.rs` finds out what is to be told, after the answers of a turn are written: what ended comes
//! from the history's recorder, what waits or holds for long from a look at the table. A `runner`
//! is the thread of one hook: it takes events out of a `backlog`, which is bounded and fair to users,
//! and runs the program for one event at a time. Between it and the program stands a `guard`, a
//! process that ends the program at its time-out and when the daemon is gone.
//!
//! Invariants: no answer waits for a hook, and nothing is done for hooks before the answers of a turn
//! are written. What a user wrote (keys, commands, notes) reaches the program on its standard input
//! only. No program of a hook outlives the daemon or its time-out.

pub(super) mod account;
pub(super) mod backlog;
pub(super) mod configured;
pub(super) mod event;
pub(super) mod facts;
pub(super) mod guard;
pub(super) mod look;
pub(super) mod program;
pub(super) mod runner;
