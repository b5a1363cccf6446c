//! Words of a command line that a person may copy from a hint, or that a shell elsewhere reads.

use std::path::Path;

/// The word, in single quotes unless a shell would read it as one plain word.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    if word.chars().all(is_plain) && !word.is_empty() && !word.starts_with('-') {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Quotes a path, like [`quoted`].
pub fn of_path(path: &Path) -> String {
    quoted(&path.display().to_string())
}
