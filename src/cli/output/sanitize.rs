//! Makes foreign text safe for a terminal, and fits text to a width.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

pub(crate) use crate::safe_text::sanitize;

use crate::safe_text::one_line;

/// A command line as one line: each run of white space, such as the newlines of a script, becomes
/// one blank.
pub(crate) fn command_line(text: &str) -> String {
    one_line(text)
}

/// How many columns the text takes.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// The text cut to at most `columns`, with `…` where something is missing.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    // Of ASCII no character takes more than one column; for others tables are looked through.
    if text.is_ascii() && text.len() <= columns || width(text) <= columns {
        return text.to_owned();
    }
    let room = columns.saturating_sub(1);
    let mut taken = 0;
    let mut end = 0;
    for (at, c) in text.char_indices() {
        taken += c.width().unwrap_or(0);
        if taken > room {
            break;
        }
        end = at + c.len_utf8();
    }
    // Some characters are wider together than alone.
    while let Some(last) = text[..end].chars().next_back().filter(|_| width(&text[..end]) > room) {
        end -= last.len_utf8();
    }
    if columns == 0 { String::new() } else { format!("{}…", &text[..end]) }
}

/// The text in lines of at most `columns`, broken at blanks.
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
