//! The daemon: the only owner of a table.
//!
//! Start reading at `server/turn.rs`, which describes a turn. `event_loop` runs the turns, `start`
//! starts the daemon, and `store::recover` reads the state that the previous daemon left. Each
//! other module owns one thing and does not depend on the server; docs/architecture.md lists them.

use std::path::PathBuf;

use canal_protocol::paths::Place;

mod calls;
mod cluster;
mod config;
mod event_loop;
mod fault_injection;
mod history;
mod hooks;
mod jobserver;
mod lease_deadlines;
mod logging;
mod membership;
mod metrics;
mod net;
mod options;
mod own_user;
mod poller;
mod processes;
mod runtime_dir;
mod server;
#[cfg(test)]
mod sim;
mod start;
mod store;
#[cfg(test)]
mod tests;
mod timers;
mod view;
mod waiters;
mod wording;

pub use crate::cluster::choose_engine::{SeenEngine, look_at as look_at_engine};
pub use crate::cluster::daemon_watcher::watch;
pub use crate::config::file::PACKAGED as PACKAGED_CONFIG;
pub use crate::config::nodes::ConfiguredNodes;
pub use crate::config::values::written_bytes;
pub use crate::event_loop::LAST_LINE;
pub use crate::hooks::program_environment::{SeenHook, look_at as look_at_hooks};
pub use crate::hooks::run_and_end_program::guard as guard_hook;
pub use crate::options::Options;
pub use crate::own_user::become_owner;
pub use crate::runtime_dir::claim::Replacing;
pub use crate::runtime_dir::instance_lock::runs;
pub use crate::runtime_dir::other_daemons::{Separation, separations, users_with_daemons};
pub use crate::start::{check, report_failure, run};
pub use crate::store::node_identity::first_start_statement;
pub use crate::wording::StartError;
pub use canal_log::engine::{Identity, Inspection, Outage, TableSize, Transport};

/// Reads the configuration of a place as a daemon would. Returns the file that was read, if there
/// is one.
///
/// # Errors
/// A daemon could not use it. The error names the file and the line.
pub fn check_configuration(place: &Place) -> anyhow::Result<Option<PathBuf>> {
    Ok(config::file::Config::read(&place.stores().config)?.path)
}

/// The names of nodes in the configuration of a place. Without a file there are none.
///
/// # Errors
/// The configuration cannot be read or used. The error names the file and the line.
pub fn configured_nodes(paths: &[PathBuf]) -> anyhow::Result<ConfiguredNodes> {
    Ok(config::file::Config::read(paths)?.nodes)
}

/// How many bytes the records and logs of a user's background jobs may have in total.
///
/// # Errors
/// The configuration cannot be read or used. The error names the file and the line.
pub fn job_bytes_max(paths: &[PathBuf]) -> anyhow::Result<u64> {
    Ok(config::file::Config::read(paths)?.jobs.max_bytes)
}

/// Begins to replace the daemon of this user at a place. Waits while another process replaces it.
///
/// # Errors
/// The place cannot be used.
pub fn replace(place: &Place) -> anyhow::Result<Replacing> {
    Ok(Replacing::begin(place)?)
}

/// Keeps the tests apart from the user's environment and processes.
#[cfg(test)]
#[path = "../../../tests/fixtures/isolation.rs"]
mod isolation;
