//! The `[history]` table of the configuration.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};

use canal_history::Limits;

/// The default for how long a record is kept.
const KEEP: Duration = Duration::from_secs(30 * 24 * 3600);

/// The default for the total size of the files.
const MAX_BYTES: u64 = 64 << 20;

/// A smaller limit would keep hardly anything.
const MAX_BYTES_MIN: u64 = 64 << 10;

/// The history settings of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct HistorySettings {
    #[serde(deserialize_with = "duration")]
    pub keep: Duration,
    /// 0 turns the history off.
    #[serde(rename = "max", deserialize_with = "max_bytes")]
    pub max_bytes: u64,
}

impl Default for HistorySettings {
    fn default() -> Self {
        Self { keep: KEEP, max_bytes: MAX_BYTES }
    }
}

impl HistorySettings {
    /// The limits on the history; `None` if the history is off.
    pub(crate) fn limits(&self) -> Option<Limits> {
        let keep_ms = u64::try_from(self.keep.as_millis()).unwrap_or(u64::MAX);
        (self.max_bytes > 0).then_some(Limits { keep_ms, max_bytes: self.max_bytes })
    }

    /// The size in the form that people write.
    pub(crate) fn max(&self) -> String {
        written(self.max_bytes)
    }
}

/// A size in the form that people write: `64MiB`.
#[must_use]
pub fn written(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let exact = units.iter().find(|(_, shift)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    exact.map_or_else(|| bytes.to_string(), |(unit, shift)| format!("{}{unit}", bytes >> shift))
}

fn max_bytes<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    match size(from)? {
        1..MAX_BYTES_MIN => Err(D::Error::custom("a history needs at least 64KiB; 0 turns it off")),
        max => Ok(max),
    }
}

/// A number of bytes: `0`, `"64MiB"`, `"1GB"`.
pub(super) fn size<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    struct Either;
    impl Visitor<'_> for Either {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a size like \"64MiB\", or 0")
        }

        fn visit_i64<E: Error>(self, bytes: i64) -> Result<u64, E> {
            u64::try_from(bytes).map_err(|_| E::custom(wrong(&bytes.to_string())))
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
            bytes(text).ok_or_else(|| E::custom(wrong(text)))
        }
    }
    from.deserialize_any(Either)
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

/// A duration, such as `90s`.
pub(super) fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    canal_text::duration::read(&String::deserialize(from)?).map_err(D::Error::custom)
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
        let shown = |max_bytes| HistorySettings { max_bytes, ..HistorySettings::default() }.max();
        assert_eq!(shown(64 << 20), "64MiB");
        assert_eq!(shown(1000), "1000");
        assert_eq!(shown(0), "0");
    }
}
