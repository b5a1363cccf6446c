//! Data on stdout.

use std::io::{self, ErrorKind, Write};

use serde::Serialize;

use super::failed::Failed;
use crate::sys::startup;

/// A value as one line of JSON.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<String, Failed> {
    serde_json::to_string(value)
        .map(|text| text + "\n")
        .map_err(|error| Failed::new(format!("cannot write JSON: {error}")))
}

/// Prints a report. A reader that has seen enough (a broken pipe) is no failure.
pub(crate) fn print(text: &str) -> Result<(), Failed> {
    match write(text) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(cannot_write),
    }
}

/// Prints what somebody has to get: no reader is a failure, too.
pub(crate) fn tell(text: &str) -> Result<(), Failed> {
    // Over a closed stdout Rust's runtime opens /dev/null, where every word is lost.
    if !startup::recorded().open[1] {
        return Err(cannot_write(ErrorKind::NotConnected.into()));
    }
    write(text).map_err(cannot_write)
}

fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

fn cannot_write(error: io::Error) -> Failed {
    match error.kind() {
        ErrorKind::NotConnected => Failed::new("cannot write to stdout: it is closed"),
        _ => Failed::new(format!("cannot write to stdout: {error}")),
    }
}
