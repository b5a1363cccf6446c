//! The daemon: the only owner of a table.
//!
//! Start reading at `server/turn.rs`, which says what a turn does. `event_loop` runs the turns, `start`
//! starts the daemon, and `store::recover` reads what the previous daemon left. The other rooms own one thing each, and
//! know nothing of the server; docs/architecture.md lists them.

mod boottime_timer;
mod calls;
mod cluster;
mod config;
mod due;
mod event_loop;
mod fault;
mod history;
mod hooks;
mod jobserver;
mod limits;
mod logging;
mod metrics;
mod net;
mod options;
mod own_user;
mod permissions;
mod poller;
mod processes;
mod runtime_dir;
mod server;
#[cfg(test)]
pub(crate) mod simulated {
    //! What the simulator needs of the daemon.

    pub(crate) use super::cluster::watcher::{Alone, Duty};
    pub(crate) use super::config::Config;
    pub(crate) use super::net::events::Source;
    pub(crate) use super::options::Options;
    pub(crate) use super::processes::holder::WatchId;
    pub(crate) use super::runtime_dir::Claim;
    pub(crate) use super::server::Server;
    pub(crate) use super::start::open;
}
mod start;
mod store;
#[cfg(test)]
mod tests;
mod unusable;
mod view;
mod waiters;
mod wording;

use std::path::PathBuf;

use crate::protocol::place::Place;

pub use crate::daemon::cluster::engine::SeenEngine;
pub use crate::daemon::cluster::watcher::watch;
pub use crate::daemon::config::nodes_section::{ConfiguredNode, ConfiguredNodes};
pub(crate) use crate::daemon::event_loop::LAST_LINE;
pub use crate::daemon::hooks::guard::guard as guard_hook;
pub use crate::daemon::hooks::look::SeenHook;
pub use crate::daemon::options::Options;
pub use crate::daemon::runtime_dir::Replacing;
pub use crate::daemon::runtime_dir::other_daemons::{Separation, separations, users_with_daemons};
pub use crate::daemon::unusable::Unusable;
pub use crate::log::engine::{Identity, Inspection, Outage, TableSize, Transport};

/// Whether a daemon of a user runs at a place, as far as that can be seen from this network
/// namespace. The daemon is not contacted.
#[must_use]
pub fn runs(place: &Place, uid: u32) -> bool {
    runtime_dir::instance_guard::runs(place, uid)
}

/// Checks whether a daemon could work, before the daemon that it replaces is told to end.
///
/// # Errors
/// Why it could not, as text for people; an [`Unusable`] if something can be done about it.
pub fn check(options: &Options) -> anyhow::Result<()> {
    start::check(options)
}

/// Reads the configuration of a place as a daemon would. Returns the file that was read, if there is
/// one.
///
/// # Errors
/// Why a daemon could not use it, with file and line.
pub fn check_configuration(place: &Place) -> anyhow::Result<Option<PathBuf>> {
    Ok(config::Config::read(&place.stores().config)?.path)
}

/// Looks at the engine with this address, or at the one that `CANAL_ENGINE` or the configuration
/// names, and changes nothing there. Waits for its answers, for a bounded time. `None` if none is
/// named.
///
/// # Errors
/// The address or the configuration cannot be used; an [`Unusable`] if something can be done about
/// it. What the engine refuses is part of the result.
pub fn look_at_engine(place: &Place, url: Option<&str>) -> anyhow::Result<Option<SeenEngine>> {
    cluster::engine::look_at(place, url)
}

/// Looks at the hooks that a daemon of the user `daemon` would have at a place: whether their programs
/// could be run. Runs none of them.
///
/// # Errors
/// The configuration cannot be read or used, with file and line.
pub fn look_at_hooks(place: &Place, daemon: u32) -> anyhow::Result<Vec<SeenHook>> {
    Ok(hooks::look::look_at(place, daemon)?)
}

/// The names of nodes that the configuration of a place has. Without a file there are none.
///
/// # Errors
/// The configuration cannot be read or used, with file and line.
pub fn configured_nodes(paths: &[PathBuf]) -> anyhow::Result<ConfiguredNodes> {
    Ok(config::Config::read(paths)?.nodes)
}

/// Begins to replace the daemon of a user at a place. Waits while another process replaces it.
///
/// # Errors
/// The place cannot be used.
pub fn replace(place: &Place, uid: u32) -> anyhow::Result<Replacing> {
    Ok(Replacing::begin(place, uid)?)
}

/// Runs the daemon until it is told to end.
///
/// # Errors
/// Why it cannot start or go on, as text for people; an [`Unusable`] if something can be done about
/// it.
pub fn run(options: &Options) -> anyhow::Result<()> {
    start::run(options)
}
