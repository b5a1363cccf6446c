//! canal's own words: every line that it writes to stderr goes through here.
//!
//! A line is one write, so that the lines of several processes on one log do not mix, and a
//! stderr that is closed or full changes nothing about what canal does.

use std::io::{self, Write};

use super::sanitize::sanitize;

/// How much to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verbosity {
    /// Nothing at all (`-q`).
    Quiet,
    /// What went wrong, and what waiting is about.
    Normal,
    /// Also what went right (`-v`).
    Verbose,
}

impl Verbosity {
    /// Says a line: `canal: …`.
    pub(crate) fn message(self, text: &str) {
        if self > Self::Quiet {
            write_line("canal: ", text);
        }
    }

    /// Says what to do about the line before: `hint: …`.
    pub(crate) fn hint(self, text: &str) {
        if self > Self::Quiet {
            write_line("hint: ", text);
        }
    }

    /// Says a line that only `-v` asks for.
    pub(crate) fn detail(self, text: &str) {
        if self > Self::Normal {
            write_line("canal: ", text);
        }
    }
}

fn write_line(lead: &str, text: &str) {
    let line = format!("{lead}{}\n", sanitize(&without_numbers(text)));
    // There is nobody left to tell that stderr cannot be written.
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

/// What std appends to the system's words (` (os error 13)`) is for programmers.
fn without_numbers(text: &str) -> String {
    const START: &str = " (os error ";
    let mut parts = text.split(START);
    let mut words = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|b| b.is_ascii_digit()) => words += rest,
            _ => words = words + START + part,
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_words_lose_their_number_and_nothing_else() {
        for (text, words) in [
            ("x: Permission denied (os error 13)", "x: Permission denied"),
            ("a (os error 2): b (os error 5)!", "a: b!"),
            ("a (os error x) b", "a (os error x) b"),
            ("a (os error ", "a (os error "),
            ("plain", "plain"),
        ] {
            assert_eq!(without_numbers(text), words);
        }
    }
}
