//! Texts that every `canal run` needs before it becomes its command.

/// Defines a text that lies beside what else a start touches (`src/start.txt`), in the same few pages;
/// others lie wherever the compiler puts them, each in a page that has to be looked for.
macro_rules! start_text {
    ($(#[$attribute:meta])* $visible:vis $name:ident = $text:literal) => {
        $(#[$attribute])*
        $visible static $name: &str = {
            static START_TEXT: [u8; $text.len()] = match $text.as_bytes().first_chunk() {
                Some(bytes) => *bytes,
                None => [0; _],
            };
            match std::str::from_utf8(&START_TEXT) {
                Ok(text) => text,
                Err(_) => "",
            }
        };
    };
}

#[cfg(test)]
mod tests {
    start_text!(TEXT = "a text, \u{e4}");

    #[test]
    fn it_is_what_it_was_written_as() {
        assert_eq!(TEXT, "a text, \u{e4}");
    }
}
