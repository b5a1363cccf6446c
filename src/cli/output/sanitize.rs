//! Makes foreign text safe for a terminal, and fits text to a width.

use unicode_truncate::UnicodeTruncateStr;
use unicode_width::UnicodeWidthStr;

pub(crate) use crate::safe_text::{is_unsafe, lines, one_line as command_line, sanitize};

/// How many columns the text takes.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// Cuts the text to at most `columns`, with `…` for what is missing.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    // No ASCII character takes more than one column; for others, `width` searches tables.
    if text.is_ascii() && text.len() <= columns || width(text) <= columns {
        return text.to_owned();
    }
    match columns.checked_sub(1) {
        Some(room) => format!("{}…", text.unicode_truncate(room).0),
        None => String::new(),
    }
}

/// The text with blanks after it, to fill this many columns.
pub(crate) fn padded(text: &str, columns: usize) -> String {
    text.to_owned() + &" ".repeat(columns.saturating_sub(width(text)))
}

/// Folds the text into lines of at most `columns`, at blanks.
pub(crate) fn fold(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if width(line) + 1 + width(word) <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cutting_counts_columns_not_bytes() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdefg", 6), "abcde…");
        assert_eq!(cut("漢字漢字", 5), "漢字…");
        assert_eq!(cut("漢字漢字", 4), "漢…");
        assert_eq!(cut("abc", 1), "…");
        assert_eq!(cut("abc", 0), "");
    }

    #[test]
    fn lines_are_folded_at_blanks() {
        assert_eq!(fold("aa bb cc", 5), ["aa bb", "cc"]);
        assert_eq!(fold("aaaaaaaa b", 5), ["aaaaaaaa", "b"]);
    }
}
