//! The tests of `tests/whole` with two daemons over one PostgreSQL, the clients of each spread over both.
#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests too")]
#![expect(clippy::print_stderr, reason = "a test that is skipped says so")]

mod over;
#[expect(dead_code, reason = "its other tests use the rest")]
#[path = "../postgres_server/mod.rs"]
mod postgres_server;

include!("../whole_engines/modules.rs");
