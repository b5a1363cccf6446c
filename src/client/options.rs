//! How a client behaves.

use std::path::PathBuf;
use std::time::Duration;

/// Whether a client starts a daemon if none runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It does, where the place allows it (not at `/run/canal`).
    IfNeeded,
    /// It does not.
    Never,
}

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether it starts a daemon if none runs.
    pub start: Start,
    /// The program that it starts; without one, the `canal` along PATH. A program that is canal says
    /// [`OWN`](crate::client::OWN).
    pub program: Option<PathBuf>,
    /// How long the daemon may take to send a message that it owes, if its process sleeps, is
    /// stopped, or is not known.
    pub answer: Duration,
    /// The same for a daemon that is busy: it executes, is ready to, or waits for the disk.
    pub answer_if_busy: Duration,
    /// How long a daemon may take to come up while its process sleeps or is stopped.
    pub up: Duration,
}

/// A daemon that comes up sleeps for moments, whatever it is started for.
const UP_MIN: Duration = Duration::from_secs(2);
const UP_MAX: Duration = Duration::from_secs(10);

impl Options {
    /// For a request that waits so long; `None` is without end. A daemon that hangs while it comes up is
    /// not waited for much longer.
    #[must_use]
    pub fn of_wait(self, wait_ms: Option<u64>) -> Self {
        let wait = wait_ms.map_or(UP_MAX, Duration::from_millis);
        Self { up: wait.clamp(UP_MIN, UP_MAX), ..self }
    }
}

impl From<Start> for Options {
    fn from(start: Start) -> Self {
        let (answer, answer_if_busy) = (Duration::from_secs(5), Duration::from_secs(60));
        Self { start, program: None, answer, answer_if_busy, up: UP_MAX }
    }
}
