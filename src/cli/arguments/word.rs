//! Reads options whose value is one of several words.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use nix::sys::signal::Signal;

use crate::protocol::OnLost;

/// Reads one of these words, each with its help and its meaning.
pub(super) fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    words: [(&'static str, &'static str, T); N],
) -> impl TypedValueParser<Value = T> {
    let known = words.map(|(word, help, _)| PossibleValue::new(word).help(help));
    PossibleValuesParser::new(known).try_map(move |word| {
        let found = words.iter().find(|(known, ..)| *known == word);
        found.map(|(.., meaning)| *meaning).ok_or("not a known word")
    })
}

/// `--on-lost`: the action on a command that loses its lock.
pub(super) fn on_lost() -> impl TypedValueParser<Value = OnLost> {
    one_of([
        ("kill", "TERM, then KILL before another host can get the lock", OnLost::Kill),
        ("term", "TERM only", OnLost::Term),
        ("warn", "Only print a warning", OnLost::Warn),
    ])
}

/// Reads `TERM`, `SIGTERM`, `term` or `15`.
pub(crate) fn signal(text: &str) -> Result<Signal, String> {
    let unknown = || "not a signal; write one like TERM, SIGTERM or 15".to_owned();
    if let Ok(number) = text.parse::<i32>() {
        return Signal::try_from(number).map_err(|_| unknown());
    }
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    format!("SIG{name}").parse().map_err(|_| unknown())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_read() {
        for text in ["TERM", "SIGTERM", "term", "sigTerm", "15"] {
            assert_eq!(signal(text), Ok(Signal::SIGTERM), "{text}");
        }
        for text in ["", "SIG", "0", "99", "-15", "TERMINATE", "SIGSIGTERM"] {
            assert!(signal(text).unwrap_err().contains("write one like TERM"), "{text}");
        }
    }
}
