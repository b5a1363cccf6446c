//! The daemon: the only owner of a table.
//!
//! Start reading at `server`, which says what a turn does; `work` is the loop around it, `start` brings
//! it up, `recover` takes up what the daemon before it left.

mod acquire;
mod again;
mod alarm;
mod ask;
mod asker;
mod call;
mod children;
mod config;
mod conflict;
mod conn;
mod conns;
mod deadline;
mod deadlock;
mod descendants;
mod detached;
mod doomed;
mod due;
mod elsewhere;
mod enclosing;
mod ended;
mod engine;
mod engine_mark;
mod events;
mod fair;
mod fault;
mod follow;
mod grant;
mod guard;
mod health;
mod home;
mod inform;
mod join;
mod kept;
mod kept_leases;
mod leases;
mod ledger;
mod limits;
mod linger;
mod listen;
mod logging;
mod note;
mod old;
mod output;
mod owners;
mod patience;
mod permission;
mod poller;
mod proof;
mod propose;
mod quota;
mod recover;
mod recovering;
mod refuse;
mod release;
mod renew;
mod reports;
mod restore;
mod roll;
mod serve;
mod server;
mod share;
mod shared;
mod shown;
mod start;
mod stop;
mod stopped;
#[cfg(test)]
mod tests;
mod text;
mod told_tokens;
mod unanswered;
mod underway;
mod untold;
mod waiting;
mod waits;
mod watcher;
mod words;
mod work;

use std::borrow::Cow;
use std::path::PathBuf;

pub use home::Replacing;
pub use watcher::watch;

use crate::protocol::place::Place;

/// How a daemon is to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where.
    pub place: Place,
    /// Whether a client started it: then its readiness and start-up errors go to descriptor 3.
    pub on_demand: bool,
    /// Leave out a journal that cannot be used; the processes it names are dealt with first.
    pub discard_journal: bool,
    /// `-v` given so many times.
    pub verbose: u8,
    /// End after so many seconds with nothing held, waiting or connected; `None` takes the
    /// config's, 0 never.
    pub idle_exit_s: Option<u64>,
    /// The address of the engine; `None` takes that of `CANAL_ENGINE`, then the config's.
    pub engine: Option<String>,
    /// For how long this host lives without renewing, in milliseconds; `None` takes the config's.
    pub engine_ttl_ms: Option<u64>,
    /// The name that people know this host by; `None` takes the config's, then the host's name.
    pub host: Option<String>,
    /// Work without an engine, also where one was used before.
    pub without_engine: bool,
    /// That it replaces another one, if it does.
    pub replaces: Option<Replacing>,
    /// The program, which is canal, that outlives a daemon over an engine, to end in time what that
    /// one would have ended; without it nothing does.
    pub watcher: Option<PathBuf>,
}

/// Why the daemon cannot start, where there is something to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Unusable {
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub hint: Cow<'static, str>,
}

/// Whether a daemon of a user runs at a place, as far as can be seen from this network namespace.
/// Nothing is asked of it.
#[must_use]
pub fn runs(place: &Place, uid: u32) -> bool {
    guard::runs(place, uid)
}

/// Finds out whether a daemon could work, before the one that it replaces is told to end.
///
/// # Errors
/// Why it could not, for people; an [`Unusable`] if something can be done about it.
pub fn check(options: &Options) -> anyhow::Result<()> {
    start::check(options)
}

/// Begins to replace the daemon of a place, of a user; waits for others who do.
///
/// # Errors
/// The place cannot be used.
pub fn replace(place: &Place, uid: u32) -> anyhow::Result<Replacing> {
    Ok(Replacing::begin(place, uid)?)
}

/// Runs the daemon until it is told to end.
///
/// # Errors
/// Why it cannot start, for people; an [`Unusable`] if something can be done about it.
pub fn run(options: &Options) -> anyhow::Result<()> {
    start::run(options)
}
