//! How a daemon is to run.

use std::path::PathBuf;

use crate::daemon::runtime_dir::Replacing;
use crate::protocol::place::Place;

/// How a daemon is to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The place of its socket and files.
    pub place: Place,
    /// Whether a client started it. If so, it reports readiness and start-up errors to descriptor
    /// 3.
    pub on_demand: bool,
    /// Leave out a journal that cannot be used. The processes that it names are dealt with first.
    pub discard_journal: bool,
    /// How often `-v` was given.
    pub verbose: u8,
    /// End after this many seconds with nothing held, waiting or connected; `None` takes the
    /// config's, 0 never.
    pub idle_exit_s: Option<u64>,
    /// The address of the engine; `None` takes that of `CANAL_ENGINE`, then the config's.
    pub engine: Option<String>,
    /// How long this host's membership lasts without a renewal, in milliseconds; `None` takes the
    /// config's.
    pub engine_ttl_ms: Option<u64>,
    /// The name that people know this host by; `None` takes the config's, then the host's name.
    pub host: Option<String>,
    /// Work without an engine, even if one was used before.
    pub without_engine: bool,
    /// The replacement that this daemon is part of, if it replaces another daemon.
    pub replaces: Option<Replacing>,
    /// Whether the daemon is a thread of another program. Then it leaves alone what belongs to the
    /// whole process: the umask, effects of signals, limits, the log, and the service manager.
    pub embedded: bool,
    /// The program of the watcher, which is canal. The watcher outlives a daemon over an engine,
    /// and ends in time the processes that the daemon would have ended. Without it, nothing ends
    /// them. It is also the program of the guards of hooks. Without it, the daemon runs no hooks.
    pub watcher: Option<PathBuf>,
}
