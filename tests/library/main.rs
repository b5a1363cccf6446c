//! The library as another program uses it: threads and processes lock at a real daemon.
#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod daemons;
mod errors;
mod guards;
#[path = "../fixtures/isolation.rs"]
mod isolation;
mod lost;
mod processes;
mod scene;
mod shown;

#[path = "../fixtures/bound.rs"]
mod bound;

/// A daemon that grants everything, with a simulated engine.
#[expect(dead_code, reason = "the tests of the supervisor use the rest")]
#[path = "../fixtures/fake_daemon.rs"]
mod fake;

use std::time::{Duration, Instant};

use bound::BOUND;
use canal::Lock;
use canal::testing::Daemon;

/// Waits until something is so, for at most [`BOUND`].
#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + BOUND;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited {BOUND:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A lock of the key at a daemon, which waits for at most [`BOUND`].
fn lock(daemon: &Daemon, key: &str) -> Lock {
    Lock::new(key).endpoint(&daemon.endpoint()).wait(BOUND)
}

/// A daemon in a separate process.
fn daemon_process() -> Daemon {
    Daemon::start_program(env!("CARGO_BIN_EXE_canal")).unwrap()
}
