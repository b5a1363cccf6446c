//! `canal run` under a daemon that works over an engine: a lock that is lost while its command runs.
//!
//! The daemon is a fake one in the test: it grants whatever it is asked for, with a deadline page, and
//! does nothing about it, so that what is seen is the wrapper's doing alone.
#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod deadline_page;
mod ending;
mod fake_daemon;
mod messages;
mod starting;

#[path = "../fixtures/bound.rs"]
mod bound;

use std::time::{Duration, Instant};

use bound::BOUND;

/// Waits until something is so, for [`BOUND`] at most.
#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + BOUND;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited {BOUND:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
