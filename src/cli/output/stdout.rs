//! Data on stdout.

use std::io::{self, ErrorKind, Write};

use serde::Serialize;

use super::sanitize::{is_unsafe, lines, styled_lines};
use crate::cli::failed::Failed;
use crate::sys::startup;

/// A value as one line of JSON, in which every character that could steer a terminal is escaped.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<String, Failed> {
    serde_json::to_string(value)
        .map(|text| escaped(text) + "\n")
        .map_err(|error| Failed::new(format!("cannot write JSON: {error}")))
}

/// JSON escapes no others than those below U+0020 by itself. Outside its texts there are none.
fn escaped(text: String) -> String {
    if !text.chars().any(is_unsafe) {
        return text;
    }
    let escape =
        |c: char| c.encode_utf16(&mut [0; 2]).iter().map(|it| format!("\\u{it:04x}")).collect();
    text.chars().map(|c| if is_unsafe(c) { escape(c) } else { c.to_string() }).collect()
}

/// Whether the reader of stdout is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReaderState {
    /// As far as is known.
    There,
    /// It has closed the pipe.
    Gone,
}

/// Prints a report, without what could steer a terminal: much of it is other people's text. A reader
/// that closed the pipe is no failure.
pub(crate) fn print(text: &str) -> Result<ReaderState, Failed> {
    draw(&lines(text))
}

/// Prints a text as it is. All of it but what steers the terminal on purpose was cleaned before.
pub(crate) fn draw(text: &str) -> Result<ReaderState, Failed> {
    match write(text) {
        Ok(()) => Ok(ReaderState::There),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ReaderState::Gone),
        Err(error) => Err(cannot_write(error)),
    }
}

/// As [`print()`], without the styles in it where stdout or the user (`NO_COLOR`) has none.
pub(crate) fn print_styled(text: &str) -> Result<ReaderState, Failed> {
    draw(&styled(text))
}

/// The text cleaned but for its styles, and without them where stdout or the user (`NO_COLOR`) has none.
pub(crate) fn styled(text: &str) -> String {
    let text = styled_lines(text);
    match anstream::AutoStream::choice(&io::stdout()) {
        anstream::ColorChoice::Never => anstream::adapter::strip_str(&text).to_string(),
        _ => text,
    }
}

/// Prints what the reader must get: without a reader this fails.
pub(crate) fn print_or_fail(text: &str) -> Result<(), Failed> {
    // Over a closed stdout Rust's runtime opens /dev/null, where every word is lost.
    if !startup::recorded().open[1] {
        return Err(cannot_write(ErrorKind::NotConnected.into()));
    }
    write(&lines(text)).map_err(cannot_write)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_says_everything_and_steers_nothing() {
        let text = "a\u{1b}[1m\u{9b}31m\u{7f}\u{202e}\u{200b}\u{e0041}é漢\n";
        let line = json(&text).unwrap();
        assert_eq!(line, "\"a\\u001b[1m\\u009b31m\\u007f\\u202e\\u200b\\udb40\\udc41é漢\\n\"\n");
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
    }
}
