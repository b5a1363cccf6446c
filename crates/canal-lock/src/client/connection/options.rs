//! The options of a client: whether it starts a daemon, and how long it waits for one.

use std::path::PathBuf;
use std::time::Duration;

use super::time_limits::Limits;

/// Whether a client starts a daemon if none runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It does, if the place allows it. That of `/run/canal` allows it to root, where systemd does
    /// not run.
    IfNeeded,
    /// It never does.
    Never,
}

/// The options of a client.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether the client starts a daemon if none runs.
    pub start: Start,
    /// The program to start; by default, the `canal` in PATH. A program that is itself canal passes
    /// [`OWN`](crate::client::OWN).
    pub program: Option<PathBuf>,
    /// How long the daemon may take to send a message that it owes.
    pub limits: Limits,
    /// How long a starting daemon may take while its process sleeps or is stopped.
    pub up: Duration,
}

/// The least time for a starting daemon, which sleeps briefly in any case.
const UP_MIN: Duration = Duration::from_secs(2);
const UP_MAX: Duration = Duration::from_secs(10);

impl Options {
    /// The options for a request that waits this long, or without end if `None`. They bound how far
    /// a daemon that hangs while it starts can delay the request.
    pub fn of_wait(self, wait_ms: Option<u64>) -> Self {
        let wait = wait_ms.map_or(UP_MAX, Duration::from_millis);
        Self { up: wait.clamp(UP_MIN, UP_MAX), ..self }
    }
}

impl From<Start> for Options {
    fn from(start: Start) -> Self {
        let limits = Limits::of(Duration::from_secs(5), Duration::from_secs(60));
        Self { start, program: None, limits, up: UP_MAX }
    }
}
