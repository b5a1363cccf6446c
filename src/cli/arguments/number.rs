//! Numbers on the command line. An error does not repeat the number: clap prints the option and its
//! value before it.

/// A whole number that is not negative.
pub(crate) fn number(text: &str) -> Result<u64, String> {
    whole(text)?.ok_or_else(|| "must not be negative".to_owned())
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
    match whole(text)? {
        Some(n) if n > 0 => Ok(n),
        _ => Err("must be at least 1".to_owned()),
    }
}

/// A process that may own a lock. Whether process 1 may is not decided here: that of a container
/// may, that of the machine may not.
pub(crate) fn pid(text: &str) -> Result<u32, String> {
    match whole(text)? {
        None | Some(0) => Err(format!("there is no process {text}")),
        Some(n) => u32::try_from(n).map_err(|_| "too large".to_owned()),
    }
}

/// An exit code, 0 to 255.
pub(crate) fn exit_code(text: &str) -> Result<u8, String> {
    let code = whole(text)?.and_then(|code| u8::try_from(code).ok());
    code.ok_or_else(|| "an exit code is 0 to 255".to_owned())
}

/// A priority, which may be negative.
pub(crate) fn priority(text: &str) -> Result<i32, String> {
    text.parse().map_err(|_| format!("not a whole number between {} and {}", i32::MIN, i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(exit_code("-1").unwrap_err(), "an exit code is 0 to 255");
        assert_eq!((pid("1"), pid("2")), (Ok(1), Ok(2)));
        assert!(pid("0").is_err() && pid("4294967296").is_err());
        assert_eq!(exit_code("255"), Ok(255));
        assert_eq!(exit_code("256").unwrap_err(), "an exit code is 0 to 255");
        assert_eq!(priority("-5"), Ok(-5));
        assert!(priority("2147483648").is_err());
    }
}
