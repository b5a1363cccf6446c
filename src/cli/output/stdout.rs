//! Writes data to stdout.

use std::io::{self, ErrorKind, Write};

use serde::Serialize;

use super::sanitize::{is_unsafe, lines};
use crate::cli::{Failed, Result};
use crate::sys::process::startup;

/// A value as one line of JSON, with every character escaped that could control a terminal.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<String> {
    let failed = |error| Failed::new(format!("cannot write JSON: {error}"));
    let text = serde_json::to_string(value).map_err(failed)? + "\n";
    // JSON itself escapes only the control characters below U+0020. The line end is the only one
    // outside its strings.
    let is_unsafe = |c| c != '\n' && is_unsafe(c);
    if !text.contains(is_unsafe) {
        return Ok(text);
    }
    let escape =
        |c: char| c.encode_utf16(&mut [0; 2]).iter().map(|it| format!("\\u{it:04x}")).collect();
    Ok(text.chars().map(|c| if is_unsafe(c) { escape(c) } else { c.to_string() }).collect())
}

/// Whether the reader of stdout has not closed the pipe, as far as canal knows.
pub(crate) type HasReader = bool;

/// Prints a report, without characters that could control a terminal, because much of it is other
/// users' text. A reader that closed the pipe is not a failure.
pub(crate) fn print(text: &str) -> Result<HasReader> {
    draw(&lines(text))
}

/// Prints a text unchanged. The caller has removed everything that controls the terminal by
/// accident.
pub(crate) fn draw(text: &str) -> Result<HasReader> {
    match write(text) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(cannot_write(error)),
    }
}

/// Prints JSON or a page, which have cleaned every text of others; see [`styled`].
pub(crate) fn print_styled(text: &str) -> Result<HasReader> {
    draw(&styled(text))
}

/// The text without its styles if stdout or the user (`NO_COLOR`) does not support them.
pub(crate) fn styled(text: &str) -> String {
    match anstream::AutoStream::choice(&io::stdout()) {
        anstream::ColorChoice::Never => anstream::adapter::strip_str(text).to_string(),
        _ => text.to_owned(),
    }
}

/// Prints a value as one line of JSON.
pub(crate) fn print_json<T: Serialize>(value: &T) -> Result<HasReader> {
    print(&json(value)?)
}

/// Prints a value as JSON, if the user asked for that.
pub(crate) fn json_if<T: Serialize>(wanted: bool, value: &T) -> Result {
    if wanted { print_json(value).map(drop) } else { Ok(()) }
}

/// Ends a command with its report: JSON if the user asked for that, text otherwise.
pub(crate) fn report<T: Serialize>(it: &T, as_json: bool, text: impl FnOnce() -> String) -> Result {
    print(&if as_json { json(it)? } else { text() }).map(drop)
}

/// Prints data that the reader must receive: without a reader, this fails.
pub(crate) fn print_or_fail(text: &str) -> Result {
    // Rust's runtime replaces a closed stdout with /dev/null, where the data would be lost.
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
