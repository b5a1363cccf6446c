//! The whole program, with real processes: what canal promises, seen from outside.
//!
//! Every test has a [`world::World`] of its own: a folder, a socket, and everything it starts. No
//! test sleeps to hope; it waits for a condition with a bound. A test that needs root, a namespace
//! or a program says on stderr that it is skipped if it cannot have it.
#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests too")]
#![expect(clippy::print_stderr, reason = "a test that is skipped says so")]

mod backend;
#[path = "../fixtures/isolation.rs"]
mod isolation;
mod jobserver;
mod journal;
mod users;

include!("modules.rs");
