//! Reads the values of options: durations, numbers, words, signals, and the numbers of jobs,
//! processes and sessions. Errors do not repeat the value, because clap prints the option and its
//! value before them.

use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use nix::sys::signal::Signal;

use crate::core::{LEASE_MS_MAX, LEASE_MS_MIN};
use crate::duration;
pub(crate) use crate::duration::{milliseconds_up as millis, short, stated, stated_ms};
use crate::protocol::{OnLost, WhyQuery};

/// The value of `--wait` and similar options: a time, or `None` for no limit.
pub(crate) type Length = Option<Duration>;

/// Reads a duration, or `infinity`.
pub(crate) fn length(text: &str) -> Result<Length, String> {
    if text == "infinity" {
        return Ok(None);
    }
    if is_negative(text) {
        return Err("must not be negative".to_owned());
    }
    duration::parse(text).map(Some).map_err(str::to_owned)
}

/// Whether the text is a duration after a minus sign.
fn is_negative(text: &str) -> bool {
    text.strip_prefix('-').is_some_and(|rest| length(rest).is_ok())
}

/// Like [`length`], but refuses zero.
pub(crate) fn some_length(text: &str) -> Result<Length, String> {
    match length(text) {
        Ok(length) if length != Some(Duration::ZERO) => Ok(length),
        Err(error) if !is_negative(text) => Err(error),
        _ => Err("must be more than 0; `infinity` sets no limit".to_owned()),
    }
}

/// Like [`length`], for a lease: long enough to be renewed in time, and short enough that a
/// forgotten lease ends.
pub(crate) fn ttl(text: &str) -> Result<Duration, String> {
    match length(text) {
        Ok(Some(ttl)) if ttl > Duration::from_millis(LEASE_MS_MAX) => {
            let most = stated_ms(LEASE_MS_MAX);
            Err(format!("a TTL can be at most {most}; renew the lease to keep it longer"))
        }
        Ok(Some(ttl)) if ttl >= Duration::from_millis(LEASE_MS_MIN) => Ok(ttl),
        Ok(None) => {
            Err("a lease must end at some point, so that another client can take the lock".into())
        }
        Err(error) if !is_negative(text) => Err(error),
        _ => {
            let least = stated_ms(LEASE_MS_MIN);
            Err(format!("a TTL must be at least {least}, to leave time for a renewal"))
        }
    }
}

/// A whole number that is not negative.
pub(crate) fn number(text: &str) -> Result<u64, String> {
    whole(text)?.ok_or_else(|| "must not be negative".to_owned())
}

/// The number of a background job, as `17` or `%17`.
pub(crate) fn job(text: &str) -> Result<u64, String> {
    number(text.strip_prefix('%').unwrap_or(text))
        .map_err(|_| "write the number of a job as 17 or %17".to_owned())
}

/// A whole number; `None` if it is negative.
fn whole(text: &str) -> Result<Option<u64>, String> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err("not a whole number".to_owned());
    }
    if digits.len() < text.len() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| "too large".to_owned())
}

/// A whole number that is at least 1.
pub(crate) fn positive(text: &str) -> Result<u64, String> {
    whole(text)?.filter(|n| *n > 0).ok_or_else(|| "must be at least 1".to_owned())
}

/// The pid of a process that may own a lock. Accepts process 1: in a container, it may own a lock;
/// on the machine itself, it may not.
pub(crate) fn pid(text: &str) -> Result<u32, String> {
    match whole(text)? {
        None | Some(0) => Err(format!("there is no process {text}")),
        Some(n) => u32::try_from(n).map_err(|_| "too large".to_owned()),
    }
}

/// An exit code, 0 to 255.
pub(crate) fn exit_code(text: &str) -> Result<u8, String> {
    let code = whole(text)?.and_then(|code| u8::try_from(code).ok());
    code.ok_or_else(|| "an exit code must be between 0 and 255".to_owned())
}

/// A priority, which may be negative.
pub(crate) fn priority(text: &str) -> Result<i32, String> {
    text.parse().map_err(|_| format!("not a whole number between {} and {}", i32::MIN, i32::MAX))
}

/// The process or session at which the chain of waits starts. A session is written as by
/// `canal status`: `s17`.
pub(crate) fn why(text: &str) -> Result<WhyQuery, String> {
    let (digits, is_session) = text.strip_prefix('s').map_or((text, false), |it| (it, true));
    let pid = number(digits).ok().map(u32::try_from);
    match (pid, is_session) {
        (Some(_), true) => Ok(WhyQuery { session: Some(text.to_owned()), pid: None }),
        (Some(Ok(pid)), false) => Ok(WhyQuery { pid: Some(pid), session: None }),
        _ => Err("neither a process number nor a session such as s17".to_owned()),
    }
}

/// Reads one of these words, each with its help and its meaning.
pub(crate) fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    words: [(&'static str, &'static str, T); N],
) -> impl TypedValueParser<Value = T> {
    let known = words.map(|(word, help, _)| PossibleValue::new(word).help(help));
    PossibleValuesParser::new(known).try_map(move |word| {
        let found = words.iter().find(|(known, ..)| *known == word);
        found.map(|(.., meaning)| *meaning).ok_or("not a known word")
    })
}

/// `--on-lost`: the action on a command that loses its lock.
pub(crate) fn on_lost() -> impl TypedValueParser<Value = OnLost> {
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
    use crate::duration::NOT_A_DURATION;

    #[test]
    fn a_length_is_a_duration_or_infinity_and_never_negative() {
        assert_eq!(length("1us").map(|length| length.map(millis) == Some(1)), Ok(true));
        assert_eq!(length("infinity"), Ok(None));
        assert_eq!(length("10x").unwrap_err(), NOT_A_DURATION);
        assert_eq!(length("-5").unwrap_err(), "must not be negative");
        for text in ["0", "-1", "-1h30m"] {
            assert!(some_length(text).unwrap_err().contains("more than 0"), "{text}");
            assert!(ttl(text).unwrap_err().contains("at least 1s"), "{text}");
        }
        assert_eq!(some_length("-x").unwrap_err(), NOT_A_DURATION);
    }

    #[test]
    fn an_invalid_number_is_an_error_with_the_reason() {
        let error = |text| number(text).unwrap_err();
        assert_eq!(number("0"), Ok(0));
        assert_eq!(number("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(error("18446744073709551616"), "too large");
        assert_eq!(error("-1"), "must not be negative");
        for text in ["", "-", "+1", "1.5", "--1", " 1"] {
            assert_eq!(error(text), "not a whole number", "{text}");
        }
    }

    #[test]
    fn each_range_has_its_ends() {
        assert_eq!(positive("1"), Ok(1));
        for text in ["0", "-1", "-99999999999999999999"] {
            assert_eq!(positive(text).unwrap_err(), "must be at least 1", "{text}");
        }
        assert_eq!(pid("-1").unwrap_err(), "there is no process -1");
        assert_eq!(exit_code("-1").unwrap_err(), "an exit code must be between 0 and 255");
        assert_eq!((pid("1"), pid("2")), (Ok(1), Ok(2)));
        assert!(pid("0").is_err() && pid("4294967296").is_err());
        assert_eq!(exit_code("255"), Ok(255));
        assert_eq!(exit_code("256").unwrap_err(), "an exit code must be between 0 and 255");
        assert_eq!(priority("-5"), Ok(-5));
        assert!(priority("2147483648").is_err());
    }

    #[test]
    fn a_number_is_a_process_and_s_with_a_number_a_session() {
        assert_eq!(why("812"), Ok(WhyQuery { pid: Some(812), session: None }));
        assert_eq!(why("s17"), Ok(WhyQuery { pid: None, session: Some("s17".to_owned()) }));
        for text in ["", "s", "17s", "-1", "sx", "make", "4294967296", "s-1", "s1 "] {
            assert!(why(text).is_err(), "{text}");
        }
    }

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
