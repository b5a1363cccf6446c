//! Keys: the names of locks.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Bound;
use std::sync::Arc;

use serde::de::Error;
use serde::{Deserialize, Serialize, Serializer};

use canal_text::safe_text::is_unsafe;

/// The most bytes a key may have.
pub const KEY_BYTES_MAX: usize = 1024;

/// The name of a lock: a UTF-8 path of non-empty components, `a/b/c`.
///
/// It has at most [`KEY_BYTES_MAX`] bytes, no leading or trailing `/`, no control characters, no
/// characters that are invisible or change the direction of writing, and no white space other than
/// the space. Cloning and comparing are cheap. Keys are ordered as their texts are.
#[derive(Clone)]
pub struct Key {
    /// The first eight bytes of the text, as a big-endian number. A shorter text is padded with
    /// zeros, which no key contains.
    head: u64,
    text: Arc<str>,
}

/// Why a text is not a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The text is empty.
    #[error("a key cannot be empty")]
    Empty,
    /// The text has more than [`KEY_BYTES_MAX`] bytes.
    #[error("a key can have at most {KEY_BYTES_MAX} bytes; this one has {0}")]
    Long(usize),
    /// A control character, such as a newline or a tab.
    #[error("a key cannot contain control characters; this one has U+{0:04X} at byte {1}")]
    Control(u32, usize),
    /// A character that is invisible or looks like a space: two keys could look alike.
    #[error("a key cannot contain invisible characters; remove U+{0:04X} at byte {1}")]
    Invisible(u32, usize),
    /// The text begins with `/`; carries the key to use instead, if there is one.
    #[error("a key cannot begin with `/`{}", .0.as_ref().map(|k| format!("; use `{k}`")).unwrap_or_default())]
    Leading(Option<String>),
    /// The text ends with `/`; carries the key to use instead.
    #[error("a key cannot end with `/`; use `{0}`")]
    Trailing(String),
    /// An empty component, as in `a//b`.
    #[error("a key cannot have an empty component; `//` is at byte {0}")]
    Component(usize),
}

impl Key {
    /// Checks a text and makes it a key.
    ///
    /// # Errors
    /// Names the rule that the text breaks and, where one is obvious, the key to use instead.
    pub fn new(text: &str) -> Result<Self, KeyError> {
        check(text).map(|()| Self::of(text.into()))
    }

    /// Checks a shared text and makes it a key without copying it.
    ///
    /// # Errors
    /// Those of [`Self::new`].
    pub fn shared(text: Arc<str>) -> Result<Self, KeyError> {
        check(&text).map(|()| Self::of(text))
    }

    fn of(text: Arc<str>) -> Self {
        let bytes = text.as_bytes();
        let head = match bytes.first_chunk() {
            Some(first) => u64::from_be_bytes(*first),
            None => {
                let word = bytes.iter().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
                word.unbounded_shl(64 - 8 * bytes.len() as u32)
            }
        };
        Self { head, text }
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The shared text.
    pub fn text(&self) -> &Arc<str> {
        &self.text
    }

    /// The texts of the key's ancestors and of the key, the shortest first.
    pub(crate) fn path(&self) -> impl Iterator<Item = &str> {
        self.above().chain(std::iter::once(self.as_str()))
    }

    /// The texts of the key's ancestors, the shortest first.
    pub(crate) fn above(&self) -> impl Iterator<Item = &str> {
        let bytes = self.text.bytes().enumerate();
        bytes.filter(|(_, byte)| *byte == b'/').map(|(at, _)| &self.text[..at])
    }

    /// The ancestor whose text has `length` bytes.
    pub(crate) fn ancestor(&self, length: usize) -> Self {
        Self::of(self.text[..length].into())
    }

    /// The elements of a map at the keys below this one.
    pub(crate) fn below_in<'m, K: Borrow<str> + Ord, V>(
        &self,
        map: &'m BTreeMap<K, V>,
    ) -> btree_map::Range<'m, K, V> {
        // `0` is the character after `/`.
        let (first, end) = (format!("{self}/"), format!("{self}0"));
        map.range::<str, _>((Bound::Included(&*first), Bound::Excluded(&*end)))
    }

    /// Whether this key equals `other` or is one of its ancestors: `a` covers `a`, `a/b`, `a/b/c`.
    pub fn covers(&self, other: &Self) -> bool {
        let rest = other.text.strip_prefix(&*self.text);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// Returns the rule that a text breaks, if it breaks one.
fn check(text: &str) -> Result<(), KeyError> {
    if text.is_empty() {
        return Err(KeyError::Empty);
    }
    if text.len() > KEY_BYTES_MAX {
        return Err(KeyError::Long(text.len()));
    }
    if is_simple(text.as_bytes()) {
        return Ok(());
    }
    if let Some((at, c)) = text.char_indices().find(|(_, c)| c.is_control()) {
        return Err(KeyError::Control(u32::from(c), at));
    }
    let hides = |c: char| is_unsafe(c) || c.is_whitespace() && c != ' ';
    if let Some((at, c)) = text.char_indices().find(|(_, c)| hides(*c)) {
        return Err(KeyError::Invisible(u32::from(c), at));
    }
    let trimmed = text.trim_matches('/');
    if text.starts_with('/') {
        let instead = Key::new(trimmed).ok().map(|key| key.as_str().to_owned());
        return Err(KeyError::Leading(instead));
    }
    if text.ends_with('/') {
        return Err(KeyError::Trailing(trimmed.to_owned()));
    }
    if let Some(at) = text.as_bytes().windows(2).position(|pair| pair == b"//") {
        return Err(KeyError::Component(at));
    }
    Ok(())
}

/// Whether all bytes are visible ASCII and no component is empty, which is true of nearly every
/// key.
fn is_simple(bytes: &[u8]) -> bool {
    let mut before = b'/';
    for &byte in bytes {
        if !matches!(byte, b' '..=b'~') || byte == b'/' && before == b'/' {
            return false;
        }
        before = byte;
    }
    before != b'/'
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.text
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        let is_all = |key: &Self| key.text.len() <= 8;
        self.head.cmp(&other.head).then_with(|| {
            if is_all(self) && is_all(other) || Arc::ptr_eq(&self.text, &other.text) {
                return Ordering::Equal;
            }
            self.text.cmp(&other.text)
        })
    }
}

/// Hashes like the text, so that the text can be used for look-ups.
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(&String::deserialize(deserializer)?).map_err(Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_covers_itself_and_its_descendants_only() {
        let key = |text| Key::new(text).unwrap();
        assert!(key("a").covers(&key("a")));
        assert!(key("a").covers(&key("a/1/x")));
        assert!(!key("a").covers(&key("ab")));
        assert!(!key("a/1").covers(&key("a")));
    }

    #[test]
    fn invalid_keys_are_errors_with_the_reason() {
        let error = |text: &str| Key::new(text).unwrap_err().to_string();
        assert_eq!(error(""), "a key cannot be empty");
        assert_eq!(error("/a/b"), "a key cannot begin with `/`; use `a/b`");
        assert_eq!(error("/"), "a key cannot begin with `/`");
        assert_eq!(error("a/"), "a key cannot end with `/`; use `a`");
        assert_eq!(error("a//b"), "a key cannot have an empty component; `//` is at byte 1");
        assert!(error("a\nb").contains("U+000A at byte 1"));
        for c in "\u{ad}\u{200b}\u{202e}\u{2028}\u{feff}\u{a0}\u{3000}\u{e0041}".chars() {
            let fault = format!("invisible characters; remove U+{:04X} at byte 4", u32::from(c));
            assert!(error(&format!("é/x{c}y")).contains(&fault), "{fault}");
        }
        assert!(Key::new("Größe/漢字 ✓").is_ok());
        assert!(error(&"x".repeat(KEY_BYTES_MAX + 1)).contains("this one has 1025"));
        assert!(Key::new(&"x".repeat(KEY_BYTES_MAX)).is_ok());
    }

    #[test]
    fn simple_keys_and_keys_with_an_umlaut_have_the_same_rules() {
        let same = |text: &str| match (Key::new(text), Key::new(&format!("{text}ä"))) {
            (Ok(one), Ok(other)) => assert_eq!(other.as_str(), format!("{}ä", one.as_str())),
            (Err(KeyError::Empty), Ok(_)) => {}
            // With the suffix, the text no longer ends with `/`.
            (Err(KeyError::Trailing(_)), _) => {}
            (Err(KeyError::Leading(_)), Err(KeyError::Leading(_))) => {}
            (one, other) => assert_eq!(one, other, "{text:?}"),
        };
        let pieces = ["", "a", "/", "//", " ", "~", "\u{7f}", "\u{1f}", "b0"];
        for text in pieces.iter().flat_map(|one| pieces.map(|other| format!("x{one}y{other}"))) {
            same(&text);
            same(&text[1..]);
        }
    }

    #[test]
    fn keys_are_ordered_as_their_texts_are() {
        let mut texts: Vec<String> = ["a", "a/b", "a/b/c", "a0", "b", "é", "zz", "abcdefgh"]
            .iter()
            .flat_map(|one| {
                ["", "-", "1", "/1", "bcdefgh", "bcdefghi", "ü"].map(|end| one.to_string() + end)
            })
            .collect();
        texts.extend((6..=10).map(|n| "x".repeat(n)));
        for one in &texts {
            for other in &texts {
                let keys = (Key::new(one).unwrap(), Key::new(other).unwrap());
                assert_eq!(keys.0.cmp(&keys.1), one.cmp(other), "{one} and {other}");
                assert_eq!(keys.0 == keys.1, one == other, "{one} and {other}");
            }
        }
    }
}
