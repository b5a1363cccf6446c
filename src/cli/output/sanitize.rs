//! Makes foreign text safe for a terminal, and fits text to a width.

use unicode_truncate::UnicodeTruncateStr;
use unicode_width::UnicodeWidthStr;

pub(crate) use crate::safe_text::{is_unsafe, lines, one_line as command_line, sanitize};

/// Removes everything that controls a terminal from a text of several lines, except the line ends
/// and canal's own styles (`ESC [ 1 m`).
pub(crate) fn styled_lines(text: &str) -> String {
    const BEGIN: &str = "\x1b[";
    let mut parts = text.split(BEGIN);
    let mut clean = lines(parts.next().unwrap_or_default());
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
        match rest.strip_prefix('m') {
            Some(rest) => {
                clean += BEGIN;
                clean += &part[..part.len() - rest.len()];
                clean += &lines(rest);
            }
            None => clean += &format!("?[{}", lines(part)),
        }
    }
    clean
}

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
    fn only_styles_are_left_of_what_steers_a_terminal() {
        assert_eq!(styled_lines("\x1b[1;33ma\x1b[0m\n\x1b[m"), "\x1b[1;33ma\x1b[0m\n\x1b[m");
        assert_eq!(
            styled_lines("\x1b]0;x\x07\x1b[2J\u{9b}1m\x1b[1\x1b[m"),
            "?]0;x??[2J?1m?[1\x1b[m"
        );
    }

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
