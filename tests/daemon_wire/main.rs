//! The daemon as a bare peer sees it: frames over a socket, without the client library.
//!
//! No test sleeps and hopes; each waits for a condition with a bound.
#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests too")]
#![expect(clippy::print_stderr, reason = "a test that fails shows what the daemon said")]

#[path = "../fixtures/isolation.rs"]
mod isolation;
#[path = "../fixtures/wire/mod.rs"]
mod wire;

mod calls;
mod leases;
mod lifecycle;
mod limits;
mod locks;
mod nodes;
