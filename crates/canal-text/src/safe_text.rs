//! Makes foreign text safe to show: it cannot control a terminal, break a line or change the
//! direction of writing.

/// The text with `?` for each unsafe character.
pub fn sanitize(text: &str) -> String {
    text.chars().map(|c| if is_unsafe(c) { '?' } else { c }).collect()
}

/// Like [`sanitize`], but keeps the line endings of a text of several lines.
pub fn lines(text: &str) -> String {
    let line = |line: &str| match line.strip_suffix('\r') {
        Some(line) => sanitize(line) + "\r",
        None => sanitize(line),
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// Like [`sanitize`], but returns one line: each run of white space, such as the newlines of a
/// script, becomes one space, and the ends are trimmed. The result is never longer in bytes.
pub fn one_line(text: &str) -> String {
    sanitize(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Whether a character could control a terminal, breaks a line, changes the direction of writing
/// or is invisible: Unicode's Cc, Cf, Zl and Zp, and the characters it calls ignorable by default.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}'
            | '\u{890}' | '\u{891}' | '\u{8e2}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
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

    /// Tests a character with the tables of regex-syntax, which are independent of those above.
    fn in_classes(classes: &str) -> impl Fn(char) -> bool {
        let parsed = regex_syntax::parse(classes).unwrap();
        let regex_syntax::hir::HirKind::Class(regex_syntax::hir::Class::Unicode(class)) =
            parsed.into_kind()
        else {
            panic!("{classes} is no class")
        };
        let members = class.iter().flat_map(|range| range.start()..=range.end());
        let mut is_member = vec![false; 1 + char::MAX as usize];
        members.for_each(|c| is_member[c as usize] = true);
        move |c| is_member[c as usize]
    }

    #[test]
    fn of_all_of_unicode_nothing_that_steers_or_does_not_show_survives() {
        let is_unsafe = in_classes(r"[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]");
        let is_kept =
            in_classes(r"[[\p{L}\p{N}\p{P}\p{S}\p{Zs}]--\p{Default_Ignorable_Code_Point}]");
        for c in '\0'..=char::MAX {
            let clean = sanitize(&format!("a{c}b"));
            assert!(!is_unsafe(c) || clean == "a?b", "U+{:04X}", u32::from(c));
            assert!(!is_kept(c) || clean == format!("a{c}b"), "U+{:04X}", u32::from(c));
        }
    }

    #[test]
    fn lines_keep_their_ends() {
        assert_eq!(lines("a\x1b\r\nb\rc\n\n"), "a?\r\nb?c\n\n");
    }

    #[test]
    fn one_line_is_left_of_many() {
        assert_eq!(one_line("sh -c  a\n\tb\x1b;\r\n"), "sh -c a b?;");
        assert_eq!(one_line(" a\u{2028}b\u{2029}\u{85}c\u{a0}"), "a b c");
        assert_eq!(one_line("\n \t"), "");
    }
}
