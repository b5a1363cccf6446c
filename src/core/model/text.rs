//! Deserializing a value from a string without copying the string.

use std::fmt;

use serde::de::{Error, Visitor};

/// Makes a value from a string.
pub(in crate::core) struct Text<T, E>(pub(in crate::core) fn(&str) -> Result<T, E>);

impl<T, E: fmt::Display> Visitor<'_> for Text<T, E> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<X: Error>(self, text: &str) -> Result<T, X> {
        (self.0)(text).map_err(X::custom)
    }
}
