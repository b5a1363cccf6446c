// The modules of `tests/whole`, as the test binaries of engines include them; `list.rs` says which are
// left out, and why.
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
#[path = "../whole_engines/list.rs"]
mod list;
#[path = "../whole/acquire_forms.rs"]
mod acquire_forms;
#[path = "../whole/bad_input.rs"]
mod bad_input;
#[path = "../whole/campaign.rs"]
mod campaign;
#[path = "../whole/campaign_modes.rs"]
mod campaign_modes;
#[path = "../whole/children.rs"]
mod children;
#[path = "../whole/crosswise.rs"]
mod crosswise;
#[path = "../whole/crosswise_kills.rs"]
mod crosswise_kills;
#[path = "../whole/crosswise_restarts.rs"]
mod crosswise_restarts;
#[path = "../whole/crosswise_slots.rs"]
mod crosswise_slots;
#[path = "../whole/crowd.rs"]
mod crowd;
#[path = "../whole/examples_canal_lock.rs"]
mod examples_canal_lock;
#[path = "../whole/examples_locks.rs"]
mod examples_locks;
#[path = "../whole/examples_sharplock.rs"]
mod examples_sharplock;
#[path = "../whole/examples_sleeplocks.rs"]
mod examples_sleeplocks;
#[path = "../whole/exit_codes.rs"]
mod exit_codes;
#[path = "../whole/fencing.rs"]
mod fencing;
#[path = "../whole/free_locks.rs"]
mod free_locks;
#[path = "../whole/handed_on.rs"]
mod handed_on;
#[path = "../whole/kill.rs"]
mod kill;
#[path = "../whole/leases.rs"]
mod leases;
#[path = "../whole/nested.rs"]
mod nested;
#[path = "../whole/older_kernel.rs"]
mod older_kernel;
#[path = "../whole/on_demand.rs"]
mod on_demand;
#[path = "../whole/order.rs"]
mod order;
#[path = "../whole/resize.rs"]
mod resize;
#[path = "../whole/rules.rs"]
mod rules;
#[path = "../whole/shown_waits.rs"]
mod shown_waits;
#[path = "../whole/status.rs"]
mod status;
#[path = "../whole/steps.rs"]
mod steps;
#[path = "../whole/stopped.rs"]
mod stopped;
#[path = "../whole/streams.rs"]
mod streams;
#[path = "../whole/terminal.rs"]
mod terminal;
#[path = "../whole/transparency.rs"]
mod transparency;
#[path = "../whole/writers.rs"]
mod writers;
