//! The whole program, with real processes: canal's promises, checked from outside.
//!
//! Every test has its own [`world::World`]: a folder, a socket, and everything it starts. No test
//! sleeps and hopes; it waits for a condition with a bound. A test that lacks root, a namespace or
//! a program prints on stderr that it is skipped.
#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests too")]
#![expect(clippy::print_stderr, reason = "a test that is skipped says so")]

mod backend;
#[path = "../fixtures/isolation.rs"]
mod isolation;
mod jobserver;
mod journal;
mod users;

include!("modules.rs");
