//! Decodes the bytes that a terminal sends for keys.

/// A key that the user pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// A character.
    Char(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    /// Ctrl-L: redraws the screen.
    Redraw,
    /// Ctrl-U: clears the typed text.
    Clear,
}

/// The byte that terminals send before the name of a key.
const ESCAPE: u8 = 0x1b;

/// The longest name of a key. Longer input does not come from a keyboard.
const NAME_MAX: usize = 32;

/// Reads keys. The bytes of one key may come in several pieces.
#[derive(Debug, Default)]
pub(super) struct Keyboard {
    /// The beginning of an incomplete key.
    begun: Vec<u8>,
}

impl Keyboard {
    /// The keys that these bytes complete.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.begun.extend_from_slice(bytes);
        let mut keys = Vec::new();
        while let Some((length, key)) = first(&self.begun) {
            self.begun.drain(..length);
            keys.extend(key);
        }
        keys
    }

    /// Whether there are bytes that may be the beginning of a key.
    pub(super) fn has_begun(&self) -> bool {
        !self.begun.is_empty()
    }

    /// Handles a pause in the input: an Escape without a continuation is the key of that name.
    pub(super) fn pause(&mut self) -> Vec<Key> {
        let begun = std::mem::take(&mut self.begun);
        if begun.first() == Some(&ESCAPE) { vec![Key::Escape] } else { Vec::new() }
    }
}

/// The first key, and its number of bytes. `None` if the key is incomplete.
fn first(bytes: &[u8]) -> Option<(usize, Option<Key>)> {
    match *bytes.first()? {
        ESCAPE => named(bytes),
        b'\r' | b'\n' => Some((1, Some(Key::Enter))),
        0x7f | 0x08 => Some((1, Some(Key::Backspace))),
        0x0c => Some((1, Some(Key::Redraw))),
        0x15 => Some((1, Some(Key::Clear))),
        0x00..0x20 => Some((1, None)),
        byte => character(bytes, byte),
    }
}

/// A character in UTF-8. Invalid bytes are skipped.
fn character(bytes: &[u8], first: u8) -> Option<(usize, Option<Key>)> {
    let length = match first {
        0x00..0x80 => 1,
        0xc0..0xe0 => 2,
        0xe0..0xf0 => 3,
        0xf0..0xf8 => 4,
        _ => return Some((1, None)),
    };
    let Some(whole) = bytes.get(..length) else {
        // The character is merely incomplete if all remaining bytes belong to it.
        let goes_on = bytes[1..].iter().all(|byte| byte & 0xc0 == 0x80);
        return if goes_on { None } else { Some((1, None)) };
    };
    match std::str::from_utf8(whole).ok().and_then(|text| text.chars().next()) {
        Some(c) => Some((length, (!c.is_control()).then_some(Key::Char(c)))),
        None => Some((1, None)),
    }
}

/// A key with a name: `ESC [ A`, `ESC O A`, `ESC [ 5 ~`.
fn named(bytes: &[u8]) -> Option<(usize, Option<Key>)> {
    match bytes.get(1)? {
        b'[' => {
            let rest = &bytes[2..];
            let Some(end) = rest.iter().position(|byte| (0x40..0x7f).contains(byte)) else {
                return (rest.len() > NAME_MAX).then_some((bytes.len(), None));
            };
            Some((end + 3, key_of(rest[end], &rest[..end])))
        }
        b'O' => Some((3, key_of(*bytes.get(2)?, &[]))),
        // The key Escape, followed by something else.
        _ => Some((1, Some(Key::Escape))),
    }
}

fn key_of(last: u8, numbers: &[u8]) -> Option<Key> {
    let number = numbers.split(|byte| *byte == b';').next().unwrap_or_default();
    Some(match (last, number) {
        (b'A', _) => Key::Up,
        (b'B', _) => Key::Down,
        (b'H', _) | (b'~', b"1" | b"7") => Key::Home,
        (b'F', _) | (b'~', b"4" | b"8") => Key::End,
        (b'~', b"5") => Key::PageUp,
        (b'~', b"6") => Key::PageDown,
        (b'M', []) => Key::Enter,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys(bytes: &[u8]) -> Vec<Key> {
        let mut keyboard = Keyboard::default();
        let mut keys = keyboard.read(bytes);
        keys.extend(keyboard.pause());
        keys
    }

    #[test]
    fn keys_have_the_names_that_terminals_give_them() {
        for (bytes, expected) in [
            (&b"q"[..], &[Key::Char('q')][..]),
            ("ä漢".as_bytes(), &[Key::Char('ä'), Key::Char('漢')]),
            (b"\r", &[Key::Enter]),
            (b"\x7f\x08", &[Key::Backspace, Key::Backspace]),
            (b"\x1b[A\x1bOB", &[Key::Up, Key::Down]),
            (b"\x1b[1;5A", &[Key::Up]),
            (b"\x1b[5~\x1b[6~", &[Key::PageUp, Key::PageDown]),
            (b"\x1b[H\x1b[F\x1b[1~\x1b[8~", &[Key::Home, Key::End, Key::Home, Key::End]),
            (b"\x1b", &[Key::Escape]),
            (b"\x1bq", &[Key::Escape, Key::Char('q')]),
            (b"\x0c\x15", &[Key::Redraw, Key::Clear]),
            (b"\x1b[200~x\x1b[15~", &[Key::Char('x')]),
            (b"\xff\xc3q\x01", &[Key::Char('q')]),
        ] {
            assert_eq!(keys(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn an_endless_name_is_dropped() {
        let mut keyboard = Keyboard::default();
        assert_eq!(keyboard.read(&[b"\x1b[".to_vec(), vec![b'1'; 1000]].concat()), []);
        assert!(!keyboard.has_begun());
    }

    proptest! {
        #[test]
        fn it_does_not_matter_in_which_pieces_the_bytes_come(
            bytes in proptest::collection::vec(
                prop_oneof![Just(0x1b), Just(b'['), Just(b'O'), Just(b'A'), Just(b'5'), Just(b'~'), any::<u8>()],
                0..24,
            ),
        ) {
            let mut keyboard = Keyboard::default();
            let mut pieces: Vec<Key> = bytes.iter().flat_map(|byte| keyboard.read(&[*byte])).collect();
            pieces.extend(keyboard.pause());
            prop_assert_eq!(pieces, keys(&bytes));
        }
    }
}
