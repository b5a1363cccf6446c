//! `canal run` under a daemon over an engine: a hold that is lost while its command runs.
//!
//! The daemon is a fake in the test: it grants every request, with a deadline page, and ends no
//! command. So a test sees only the actions of the wrapper.
#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod deadline_page;
mod ending;
#[path = "../fixtures/executable.rs"]
mod executable;
#[path = "../fixtures/fake_daemon.rs"]
mod fake_daemon;
#[path = "../fixtures/isolation.rs"]
mod isolation;
mod messages;
mod starting;

#[path = "../fixtures/bound.rs"]
mod bound;

use std::time::{Duration, Instant};

use bound::BOUND;

/// Waits until `is_so`, for at most [`BOUND`].
#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + BOUND;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited {BOUND:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
