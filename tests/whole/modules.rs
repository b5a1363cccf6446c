// The test programs of the engines include these modules too. `whole_engines/list.rs` names the
// folders that they leave out, and why.
#[path = "../fixtures/expected_text.rs"]
mod expected_text;
#[path = "../fixtures/lease.rs"]
mod lease;
#[path = "../fixtures/world/namespace.rs"]
mod namespace;
#[path = "../fixtures/own_postgres.rs"]
mod own_postgres;
#[path = "../fixtures/script.rs"]
mod script;
#[path = "../fixtures/terminal.rs"]
mod terminal;
#[path = "../fixtures/world/mod.rs"]
mod world;

#[path = "../whole/acquire/mod.rs"]
mod acquire;
#[path = "../whole/crash/mod.rs"]
mod crash;
#[path = "../whole/daemon/mod.rs"]
mod daemon;
#[path = "../whole/deadlock/mod.rs"]
mod deadlock;
#[path = "../whole/grants/mod.rs"]
mod grants;
#[path = "../whole/history/mod.rs"]
mod history;
#[path = "../whole/hooks/mod.rs"]
mod hooks;
#[path = "../whole/jobs/mod.rs"]
mod jobs;
#[path = "../whole/leader/mod.rs"]
mod leader;
#[path = "../whole/metrics/mod.rs"]
mod metrics;
#[path = "../whole/other_programs/mod.rs"]
mod other_programs;
#[path = "../whole/run/mod.rs"]
mod run;
#[path = "../whole/status/mod.rs"]
mod status;
