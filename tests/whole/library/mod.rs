//! The library as another program uses it: threads and processes lock at a real daemon.

mod daemons;
mod errors;
mod guards;
mod lost;
mod processes;
mod scene;
mod shown;

use canal::Lock;
use canal::testing::Daemon;

use crate::world::process::BOUND;

/// A lock of the key at a daemon, which waits for at most [`BOUND`].
fn lock(daemon: &Daemon, key: &str) -> Lock {
    Lock::new(key).endpoint(&daemon.endpoint()).wait(BOUND)
}

/// A daemon in a separate process.
fn daemon_process() -> Daemon {
    Daemon::start_program(env!("CARGO_BIN_EXE_canal")).unwrap()
}
