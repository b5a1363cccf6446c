//! Locks over nodes: several daemons that share nothing, and the commands that join them.
//!
//! Each node is a [`world::World`] of its own.
#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests too")]
#![expect(clippy::print_stderr, reason = "a test that is skipped says so")]

#[path = "../fixtures/world/no_engine.rs"]
mod backend;
#[path = "../fixtures/isolation.rs"]
mod isolation;
#[expect(dead_code, reason = "the whole program's tests use the rest")]
#[path = "../fixtures/world/mod.rs"]
mod world;

mod bridge;
mod deadlock;
mod faults;
mod leader;
mod lease;
mod nested;
mod over_ssh;
mod run;
#[path = "../fixtures/ssh.rs"]
mod ssh;
mod waiting;
