//! The tests of `tests/whole` with two daemons over one PostgreSQL; the clients of each world use
//! both.
#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests too")]
#![expect(clippy::print_stderr, reason = "a test that is skipped says so")]

mod backend;
#[path = "../fixtures/isolation.rs"]
mod isolation;
#[expect(dead_code, reason = "its other tests use the rest")]
#[path = "../fixtures/postgres_server.rs"]
mod postgres_server;

#[path = "../whole_engines/list.rs"]
mod list;

include!("../whole/modules.rs");
