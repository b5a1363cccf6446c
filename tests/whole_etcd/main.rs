//! The tests of `tests/whole` with two daemons over one etcd; the clients of each world use both.
#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests too")]
#![expect(clippy::print_stderr, reason = "a test that is skipped says so")]

mod backend;
#[expect(dead_code, reason = "its other tests use the rest")]
#[path = "../fixtures/etcd_server/mod.rs"]
mod etcd_server;
#[path = "../fixtures/isolation.rs"]
mod isolation;

#[path = "../whole_engines/list.rs"]
mod list;

include!("../whole/modules.rs");
