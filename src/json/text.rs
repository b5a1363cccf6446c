//! Texts, names and numbers as JSON.

/// Appends a few bytes. Mostly they are fewer than it takes to make a call of memcpy(3) worth it.
#[inline]
pub(super) fn put(bytes: &[u8], out: &mut Vec<u8>) {
    let (eights, mut rest) = bytes.as_chunks::<8>();
    out.reserve(bytes.len());
    for eight in eights {
        out.extend_from_slice(eight);
    }
    if let Some((four, after)) = rest.split_first_chunk::<4>() {
        out.extend_from_slice(four);
        rest = after;
    }
    for byte in rest {
        out.push(*byte);
    }
}

/// The longest name of a field that is put together before it is appended.
const NAME_BYTES_MAX: usize = 28;

/// Appends `begin`, a name that nothing has to be escaped in, and a colon. Of a name that the
/// compiler knows it makes a few moves.
#[inline(always)]
pub(super) fn put_name(begin: u8, name: &str, out: &mut Vec<u8>) {
    let length = name.len();
    if length > NAME_BYTES_MAX {
        out.push(begin);
        put_text(name, out);
        out.push(b':');
        return;
    }
    let mut whole = [0; NAME_BYTES_MAX + 4];
    whole[0] = begin;
    whole[1] = b'"';
    whole[2..2 + length].copy_from_slice(name.as_bytes());
    whole[2 + length] = b'"';
    whole[3 + length] = b':';
    out.extend_from_slice(&whole[..length + 4]);
}

/// Appends a text that the compiler knows, and in which nothing has to be escaped.
#[inline(always)]
pub(super) fn put_known(text: &str, out: &mut Vec<u8>) {
    let length = text.len();
    if length > NAME_BYTES_MAX {
        return put_text(text, out);
    }
    let mut whole = [b'"'; NAME_BYTES_MAX + 2];
    whole[1..=length].copy_from_slice(text.as_bytes());
    whole[length + 1] = b'"';
    out.extend_from_slice(&whole[..length + 2]);
}

/// The most digits of a number.
const DIGITS_MAX: usize = 20;

/// Two digits of each number below 100.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut n = 0;
    while n < 100 {
        pairs[n] = [b'0' + (n / 10) as u8, b'0' + (n % 10) as u8];
        n += 1;
    }
    pairs
};

/// Appends a number.
#[inline]
pub(super) fn put_number(number: u64, out: &mut Vec<u8>) {
    if number < 10 {
        return out.push(b'0' + number as u8);
    }
    let (begin, length) = (out.len(), number.ilog10() as usize + 1);
    out.extend_from_slice(&[b'0'; DIGITS_MAX]);
    out.truncate(begin + length);
    let (mut rest, mut end) = (number, length);
    let digits = &mut out[begin..];
    while rest >= 10 {
        end -= 2;
        digits[end..end + 2].copy_from_slice(&PAIRS[(rest % 100) as usize]);
        rest /= 100;
    }
    if end > 0 {
        digits[0] = b'0' + rest as u8;
    }
}

/// Appends a text with its quotes.
#[inline]
pub(super) fn put_text(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    if is_plain(text.as_bytes()) {
        put(text.as_bytes(), out);
    } else {
        put_escaped(text.as_bytes(), out);
    }
    out.push(b'"');
}

const ONES: u64 = u64::from_ne_bytes([1; 8]);
/// The highest bit of each byte.
pub(super) const HIGHS: u64 = ONES << 7;

/// Whether nothing is to be escaped; looks at eight bytes at once.
#[inline]
fn is_plain(bytes: &[u8]) -> bool {
    let (eights, rest) = bytes.as_chunks::<8>();
    let found = eights.iter().fold(0, |found, eight| {
        let word = u64::from_ne_bytes(*eight);
        found | is_below(word, 0x20) | has(word, b'"') | has(word, b'\\')
    });
    found & HIGHS == 0 && rest.iter().all(|byte| *byte >= 0x20 && *byte != b'"' && *byte != b'\\')
}

/// Sets the highest bit of a byte if one of the bytes is below `limit`, at most 128.
#[inline]
pub(super) fn is_below(word: u64, limit: u8) -> u64 {
    word.wrapping_sub(ONES * u64::from(limit)) & !word
}

/// Sets the highest bit of a byte if one of the bytes is this one.
#[inline]
pub(super) fn has(word: u64, byte: u8) -> u64 {
    is_below(word ^ (ONES * u64::from(byte)), 1)
}

#[cold]
fn put_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    for byte in bytes {
        match *byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            0x08 => out.extend_from_slice(b"\\b"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            0x0c => out.extend_from_slice(b"\\f"),
            b'\r' => out.extend_from_slice(b"\\r"),
            byte if byte < 0x20 => {
                let digit = |nibble: u8| b"0123456789abcdef"[usize::from(nibble)];
                out.extend_from_slice(&[
                    b'\\',
                    b'u',
                    b'0',
                    b'0',
                    digit(byte >> 4),
                    digit(byte & 15),
                ]);
            }
            byte => out.push(byte),
        }
    }
}
