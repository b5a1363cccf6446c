//! Data on stdout.

use std::io::{self, ErrorKind, Write};

use serde::Serialize;

use crate::cli::failed::Failed;
use crate::sys::startup;

/// A value as one line of JSON.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<String, Failed> {
    serde_json::to_string(value)
        .map(|text| text + "\n")
        .map_err(|error| Failed::new(format!("cannot write JSON: {error}")))
}

/// Whether the reader of stdout is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReaderState {
    /// As far as is known.
    There,
    /// It has closed the pipe.
    Gone,
}

/// Prints a report. A reader that closed the pipe is no failure.
pub(crate) fn print(text: &str) -> Result<ReaderState, Failed> {
    match write(text) {
        Ok(()) => Ok(ReaderState::There),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ReaderState::Gone),
        Err(error) => Err(cannot_write(error)),
    }
}

/// As [`print()`], without the styles in it where stdout or the user (`NO_COLOR`) has none.
pub(crate) fn print_styled(text: &str) -> Result<ReaderState, Failed> {
    print(&styled(text))
}

/// The text without the styles in it where stdout or the user (`NO_COLOR`) has none.
pub(crate) fn styled(text: &str) -> String {
    match anstream::AutoStream::choice(&io::stdout()) {
        anstream::ColorChoice::Never => anstream::adapter::strip_str(text).to_string(),
        _ => text.to_owned(),
    }
}

/// Prints what the reader must get: without a reader this fails.
pub(crate) fn print_or_fail(text: &str) -> Result<(), Failed> {
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
