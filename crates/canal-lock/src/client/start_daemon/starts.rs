//! Counts the daemons that a client has started since one last answered it.
//!
//! Invariant: a client starts at most [`STARTS_MAX`] daemons in a row that do not answer it.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;

use crate::client::{ClientError, Result};
use canal_protocol::place::Place;
use canal_sys::pidfd::Pidfd;
use canal_text::safe_text::one_line;

/// Chance may kill one daemon, and even the one after it. A third death has a cause that would kill
/// a fourth daemon too.
const STARTS_MAX: u32 = 3;

/// How many bytes from the end of a log are read.
const LOG_BYTES_MAX: u64 = 16 * 1024;

const HINT: &str = "find the reason with `canal doctor`, or run the daemon in the foreground with \
                    `canal daemon -v`";

/// The daemons that a client has started since one last answered it.
#[derive(Debug, Default)]
pub(crate) struct Starts {
    count: u32,
    /// The size of the log before the last start.
    log_bytes: u64,
    last: Option<Pidfd>,
}

impl Starts {
    /// Counts a start that is about to happen.
    ///
    /// # Errors
    /// [`STARTS_MAX`] daemons have died without an answer. The error contains the reason of the
    /// last one.
    pub(super) fn begin(&mut self, place: &Place) -> Result<()> {
        let log = log_of(place);
        if self.count == STARTS_MAX {
            return Err(ClientError::Start(self.why_they_died(&log)));
        }
        self.count += 1;
        self.log_bytes = log.metadata().map_or(0, |found| found.len());
        self.last = None;
        Ok(())
    }

    /// Records the process of the latest start.
    pub(super) fn is_process(&mut self, started: Option<Pidfd>) {
        self.last = started;
    }

    /// Records that the started daemon left the place to another daemon, which is not a failure.
    pub(super) fn gave_way(&mut self) {
        self.count -= 1;
    }

    /// Records that a daemon has answered this client.
    pub(crate) fn daemon_answered(&mut self) {
        *self = Self::default();
    }

    fn why_they_died(&self, log: &Path) -> String {
        let how = self.last.as_ref().and_then(Pidfd::wait_status).and_then(ended);
        let how = how.map(|how| format!(" ({how})")).unwrap_or_default();
        let (count, path) = (STARTS_MAX, log.display());
        let last = match last_line(log, self.log_bytes) {
            Some(line) => format!("wrote this last line to {path}: {line}"),
            None => format!("wrote nothing to {path}"),
        };
        format!(
            "{count} daemons started, and each died before it answered; the last one{how} {last}\n\
             hint: {HINT}"
        )
    }
}

/// The log file of a daemon that a client starts.
pub(super) fn log_of(place: &Place) -> PathBuf {
    place.dir.join("daemon.log")
}

/// The last line in the log of the daemons that clients start at a place.
pub fn last_line_of_log(place: &Place) -> Option<String> {
    last_line(&log_of(place), 0)
}

/// The last line that a daemon wrote to a log after its first `from` bytes. Lines that begin with
/// `hint:` or `note:` explain the line before them, so they do not count.
fn last_line(log: &Path, from: u64) -> Option<String> {
    let mut file = File::open(log).ok()?;
    let bytes = file.metadata().ok()?.len();
    // A log that is shorter than before has been restarted.
    let from = if from > bytes { 0 } else { from };
    file.seek(SeekFrom::Start(from.max(bytes.saturating_sub(LOG_BYTES_MAX)))).ok()?;
    let mut text = Vec::new();
    file.take(LOG_BYTES_MAX).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines().map(one_line).rev();
    lines
        .find(|line| !line.is_empty() && !line.starts_with("hint: ") && !line.starts_with("note: "))
}

/// How a process ended, by its wait status.
fn ended(status: i32) -> Option<String> {
    match WaitStatus::from_raw(Pid::from_raw(0), status).ok()? {
        WaitStatus::Exited(_, code) => Some(format!("exit code {code}")),
        WaitStatus::Signaled(_, signal, _) => Some(format!("killed by {}", Signal::as_str(signal))),
        _ => None,
    }
}
