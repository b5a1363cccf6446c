//! The engine in PostgreSQL, against real servers that the tests start.
#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests too")]
#![expect(clippy::print_stderr, reason = "what is skipped is said")]

#[path = "../engine_contract/mod.rs"]
mod engine_contract;
#[path = "../postgres_server/mod.rs"]
#[expect(dead_code, reason = "for other tests, too")]
mod postgres_server;

mod contract;
