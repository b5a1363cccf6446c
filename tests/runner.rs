//! The tests that start processes. Cargo runs test programs one after another, and links each one,
//! so these tests are one program. `cargo test --test runner hosts::` runs a part.
#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests too")]
#![expect(clippy::print_stderr, reason = "a test that is skipped says so")]

#[cfg_attr(
    not(all(feature = "etcd", feature = "postgres")),
    allow(dead_code, reason = "the tests of hosts use the rest")
)]
mod fixtures;
use fixtures::servers::{self, etcd_server, postgres_server, psql, shared_servers, ssh};
use fixtures::{
    backend, bound, engine_contract, expected_text, fake_daemon, isolation, lease, namespace,
    screen, script, shared_table, terminal, wire, world,
};

mod daemon_wire;
mod engines;
#[cfg(all(feature = "etcd", feature = "postgres"))]
mod hosts;
mod nodes;
mod whole;
