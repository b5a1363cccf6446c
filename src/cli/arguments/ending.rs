//! Options that control how a command is ended.

use clap::ValueEnum;
use nix::sys::signal::Signal;

use crate::protocol::OnLost;

/// `--on-lost`: the action on a command that loses its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLostArg {
    /// TERM, then KILL before another host can get the lock
    Kill,
    /// TERM only
    Term,
    /// Only print a warning
    Warn,
}

impl From<OnLostArg> for OnLost {
    fn from(arg: OnLostArg) -> Self {
        match arg {
            OnLostArg::Kill => Self::Kill,
            OnLostArg::Term => Self::Term,
            OnLostArg::Warn => Self::Warn,
        }
    }
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
