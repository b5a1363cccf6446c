//! Values of settings: durations, sizes, keys.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};

use canal_core::Key;
use canal_text::duration::milliseconds;

/// A duration, such as `90s`, which need not be set.
pub(super) fn duration<'de, T: From<Duration>, D: Deserializer<'de>>(
    from: D,
) -> Result<T, D::Error> {
    let read = canal_text::duration::read(&String::deserialize(from)?);
    read.map(T::from).map_err(D::Error::custom)
}

/// The same in milliseconds.
pub(super) fn ms<'de, T: From<u64>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    duration(from).map(|length| T::from(milliseconds(length)))
}

/// A key that need not be set.
pub(crate) fn optional_key<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Key>, D::Error> {
    let name = String::deserialize(from)?;
    let key = Key::new(&name).map_err(|error| D::Error::custom(format!("`{name}`: {error}")))?;
    Ok(Some(key))
}

/// A number of bytes: `0`, `"64MiB"`, `"1GB"`.
pub(super) fn size<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    from.deserialize_any(NumberOrText {
        expected: "a size like \"64MiB\", or 0",
        number: |bytes| u64::try_from(bytes).map_err(|_| wrong(&bytes.to_string())),
        text: |text| bytes(text).ok_or_else(|| wrong(text)),
    })
}

/// Reads a value that is a number or a text, each with its own function.
pub(crate) struct NumberOrText<T> {
    pub expected: &'static str,
    pub number: fn(i64) -> Result<T, String>,
    pub text: fn(&str) -> Result<T, String>,
}

impl<T> Visitor<'_> for NumberOrText<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        (self.number)(number).map_err(E::custom)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.text)(text).map_err(E::custom)
    }
}

fn wrong(text: &str) -> String {
    format!("`{text}` is not a size; write one like `64MiB` or `1GB`")
}

fn bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim_start() {
        "" | "B" => 1,
        "kB" | "KB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// A size in the form that people write: `64MiB`.
pub fn written_bytes(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let exact = units.iter().find(|(_, shift)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    exact.map_or_else(|| bytes.to_string(), |(unit, shift)| format!("{}{unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_a_unit() {
        for (text, size) in [
            ("0", Some(0)),
            ("1000", Some(1000)),
            ("64MiB", Some(64 << 20)),
            ("64 MiB", Some(64 << 20)),
            ("1GB", Some(1_000_000_000)),
            ("2K", Some(2048)),
            ("", None),
            ("MiB", None),
            ("-1", None),
            ("1.5MiB", None),
            ("64mib", None),
            ("99999999999GiB", None),
        ] {
            assert_eq!(bytes(text), size, "{text}");
        }
        assert_eq!(written_bytes(64 << 20), "64MiB");
        assert_eq!(written_bytes(1000), "1000");
        assert_eq!(written_bytes(0), "0");
    }
}
