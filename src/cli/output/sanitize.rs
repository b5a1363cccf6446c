//! Makes foreign text safe for a terminal, and fits text to a width.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The text with `?` for each character that could control a terminal, break a line or change the
/// direction of writing.
pub(crate) fn sanitize(text: &str) -> String {
    text.chars().map(|c| if steers(c) { '?' } else { c }).collect()
}

/// A command line as one line: each run of white space, such as the newlines of a script, becomes
/// one blank.
pub(crate) fn command_line(text: &str) -> String {
    sanitize(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn steers(c: char) -> bool {
    // Line and paragraph separators, marks and overrides of direction, zero-width characters.
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
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
    fn nothing_that_steers_a_terminal_survives() {
        assert_eq!(sanitize("a\x1b[2Jb\nc\td\u{202e}e\u{9b}f"), "a?[2Jb?c?d?e?f");
        assert_eq!(sanitize("Größe 漢字 ✓"), "Größe 漢字 ✓");
        assert_eq!(command_line("sh -c  a\n\tb\x1b;\r\n"), "sh -c a b?;");
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
