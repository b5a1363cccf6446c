//! How a daemon is to run, and why it cannot.

use std::borrow::Cow;
use std::path::PathBuf;

use crate::daemon::runtime_dir::Replacing;
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
