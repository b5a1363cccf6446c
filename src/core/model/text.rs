//! Reading what stands as a text in a message or a log, without a copy of the text.

use std::fmt;

use serde::de::{Error, Visitor};

/// Makes a value of a text.
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
