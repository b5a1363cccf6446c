//! Reading messages as programs write them: without white space, and without escapes in texts.
//!
//! Invariant: a value that is read here is the one that serde_json reads from the same bytes. What is
//! wrong, or only unusual, is `None`: then serde_json reads it, or says what is wrong.

use serde::Deserialize;

use super::reader::Reader;
use super::text::{HIGHS, special};

/// A message, as far as it was not read yet.
#[derive(Clone, Debug)]
pub struct Plain<'a> {
    /// What is left.
    rest: &'a str,
}

impl<'a> Plain<'a> {
    /// Begins to read a message; `None` if it is no text.
    #[must_use]
    pub fn new(message: &'a [u8]) -> Option<Self> {
        std::str::from_utf8(message).ok().map(|rest| Self { rest })
    }

    /// Whether this stands next; it is then read.
    #[inline]
    pub fn goes_on(&mut self, with: &str) -> bool {
        let rest = self.rest.strip_prefix(with);
        rest.inspect(|rest| self.rest = rest).is_some()
    }

    /// Whether all was read.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// A value.
    pub fn value<T: Deserialize<'a>>(&mut self) -> Option<T> {
        T::deserialize(Reader { plain: self }).ok()
    }

    /// A text, as it stands between its quotes.
    #[inline]
    pub fn text(&mut self) -> Option<&'a str> {
        let text = self.rest.strip_prefix('"')?;
        let end = end_of_plain(text.as_bytes());
        let (text, after) = text.split_at_checked(end)?;
        self.rest = after.strip_prefix('"')?;
        Some(text)
    }

    /// A number that has neither a sign nor a fraction.
    #[inline]
    pub(super) fn number(&mut self) -> Option<u64> {
        let bytes = self.rest.as_bytes();
        let (mut number, mut length) = (0_u64, 0);
        while let Some(digit) = bytes.get(length).map(|byte| byte.wrapping_sub(b'0'))
            && digit < 10
        {
            number = number.checked_mul(10)?.checked_add(u64::from(digit))?;
            length += 1;
        }
        let is_number = length == 1 || length > 1 && bytes.first() != Some(&b'0');
        let goes_on = matches!(bytes.get(length), Some(b'.' | b'e' | b'E'));
        if !is_number || goes_on {
            return None;
        }
        self.rest = self.rest.get(length..)?;
        Some(number)
    }

    /// Whether this bracket stands next; it is then read.
    #[inline]
    pub(super) fn closes(&mut self, with: u8) -> bool {
        let closes = self.rest.as_bytes().first() == Some(&with);
        if closes {
            self.rest = self.rest.get(1..).unwrap_or_default();
        }
        closes
    }
}

/// Where a text ends, or is not plain; looks at eight bytes at once.
#[inline]
fn end_of_plain(bytes: &[u8]) -> usize {
    let (eights, _) = bytes.as_chunks::<8>();
    let mut at = 0;
    for eight in eights {
        let word = u64::from_le_bytes(*eight);
        let found = special(word) & HIGHS;
        if found != 0 {
            // The lowest one that is marked is one; those above it may be marked by mistake.
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let ends = |byte: &u8| *byte < 0x20 || *byte == b'"' || *byte == b'\\';
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().position(ends).unwrap_or(rest.len())
}
