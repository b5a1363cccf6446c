//! How the values of a configuration are read from their text.

use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error};

use canal_core::Key;
use canal_text::duration::read;

/// A duration, such as `90s`.
pub(super) fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    read(&String::deserialize(from)?).map_err(D::Error::custom)
}

/// A duration that need not be set.
pub(super) fn optional_duration<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Duration>, D::Error> {
    duration(from).map(Some)
}

/// A duration that need not be set, in milliseconds.
pub(super) fn optional_ms<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    Ok(Some(u64::try_from(duration(from)?.as_millis()).unwrap_or(u64::MAX)))
}

/// A key that need not be set.
pub(crate) fn optional_key<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Key>, D::Error> {
    let name = String::deserialize(from)?;
    let key = Key::new(&name).map_err(|error| D::Error::custom(format!("`{name}`: {error}")))?;
    Ok(Some(key))
}
