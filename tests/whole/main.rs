//! The whole program, with real processes: what canal promises, seen from outside.
//!
//! Every test has a [`world::World`] of its own: a folder, a socket, and everything it starts. No
//! test sleeps to hope; it waits for a condition with a bound. What needs root, a namespace or an
//! installed program says so on stderr when it is skipped.
#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests too")]
#![expect(clippy::print_stderr, reason = "a test that is skipped says so")]

#[path = "../fixtures/expected_text.rs"]
mod expected_text;
#[path = "../fixtures/namespace.rs"]
mod namespace;
#[path = "../fixtures/own_postgres.rs"]
mod own_postgres;
#[path = "../fixtures/script.rs"]
mod script;
#[path = "../fixtures/world/mod.rs"]
mod world;

mod acquire_forms;
mod backend;
mod bad_input;
mod campaign;
mod campaign_modes;
mod children;
mod crosswise;
mod crosswise_kills;
mod crosswise_restarts;
mod crosswise_slots;
mod crowd;
mod disk;
mod examples_canal_lock;
mod examples_locks;
mod examples_sharplock;
mod examples_sleeplocks;
mod exit_codes;
mod fencing;
mod free_locks;
mod handed_on;
mod journal_faults;
mod kill;
mod leases;
mod nested;
mod older_kernel;
mod on_demand;
mod order;
mod permissions;
mod places;
mod resize;
mod rules;
mod shown_waits;
mod status;
mod steps;
mod stopped;
mod streams;
mod terminal;
mod transparency;
mod writers;
