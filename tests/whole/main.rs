//! The whole program, with real processes: canal's promises, checked from outside.
//!
//! Every test has its own [`world::World`]: a folder, a socket, and everything it starts. No test
//! sleeps and hopes; it waits for a condition with a bound. A test that lacks root, a namespace or
//! a program prints on stderr that it is skipped.
#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests too")]
#![expect(clippy::print_stderr, reason = "a test that is skipped says so")]

mod backend;
#[expect(dead_code, reason = "the tests of hosts and engines use the rest")]
#[path = "../fixtures/etcd_server/mod.rs"]
mod etcd_server;
#[path = "../fixtures/expected_text.rs"]
mod expected_text;
#[path = "../fixtures/fake_daemon.rs"]
mod fake_daemon;
#[path = "../fixtures/isolation.rs"]
mod isolation;
#[path = "../fixtures/lease.rs"]
mod lease;
#[path = "../fixtures/world/namespace.rs"]
mod namespace;
#[path = "../fixtures/own_postgres.rs"]
mod own_postgres;
#[expect(dead_code, reason = "the tests of hosts and engines use the rest")]
#[path = "../fixtures/postgres_server.rs"]
mod postgres_server;
#[path = "../fixtures/script.rs"]
mod script;
mod shared_servers;
#[path = "../fixtures/terminal.rs"]
mod terminal;
#[path = "../fixtures/world/mod.rs"]
mod world;

mod acquire;
mod cli;
mod crash;
mod daemon;
mod deadlock;
mod grants;
mod history;
mod hold_lost;
mod hooks;
mod jobs;
mod jobserver;
mod journal;
mod leader;
mod library;
mod metrics;
mod other_programs;
mod recipes;
mod run;
mod screens;
mod status;
mod users;
