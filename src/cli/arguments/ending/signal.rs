//! Reads signals on the command line.

use nix::sys::signal::Signal;

/// Reads `TERM`, `SIGTERM`, `term` or `15`.
pub(crate) fn parse(text: &str) -> Result<Signal, String> {
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
            assert_eq!(parse(text), Ok(Signal::SIGTERM), "{text}");
        }
        for text in ["", "SIG", "0", "99", "-15", "TERMINATE", "SIGSIGTERM"] {
            assert!(parse(text).unwrap_err().contains("write one like TERM"), "{text}");
        }
    }
}
