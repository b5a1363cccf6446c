//! Foreign text that is safe to show: it cannot steer a terminal, break a line or change the direction
//! of writing.

/// The text with `?` for each character that could steer a terminal.
pub(crate) fn sanitize(text: &str) -> String {
    text.chars().map(|c| if steers(c) { '?' } else { c }).collect()
}

/// The same as one line: each run of white space, such as the newlines of a script, becomes one
/// blank, and none is left at the ends. It has no more bytes than before.
pub(crate) fn one_line(text: &str) -> String {
    sanitize(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn steers(c: char) -> bool {
    // Line and paragraph separators, marks and overrides of direction, zero-width characters.
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_steers_a_terminal_survives() {
        assert_eq!(sanitize("a\x1b[2Jb\nc\td\u{202e}e\u{9b}f"), "a?[2Jb?c?d?e?f");
        assert_eq!(sanitize("a\u{61c}b\u{2066}c\u{feff}"), "a?b?c?");
        assert_eq!(sanitize("Größe 漢字 ✓"), "Größe 漢字 ✓");
    }

    #[test]
    fn one_line_is_left_of_many() {
        assert_eq!(one_line("sh -c  a\n\tb\x1b;\r\n"), "sh -c a b?;");
        assert_eq!(one_line(" a\u{2028}b\u{2029}\u{85}c\u{a0}"), "a b c");
        assert_eq!(one_line("\n \t"), "");
    }
}
