//! Texts, names and numbers as JSON.

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

/// Appends a number.
#[inline]
pub(super) fn put_number(number: u64, out: &mut Vec<u8>) {
    if number < 10 {
        out.push(b'0' + number as u8);
    } else {
        put_digits(number, out);
    }
}

const EIGHT_DIGITS: u64 = 100_000_000;

/// Appends a number that is not 0.
fn put_digits(number: u64, out: &mut Vec<u8>) {
    if number < EIGHT_DIGITS {
        return put_first(number, out);
    }
    let (above, last) = (number / EIGHT_DIGITS, number % EIGHT_DIGITS);
    if above < EIGHT_DIGITS {
        put_first(above, out);
    } else {
        put_first(above / EIGHT_DIGITS, out);
        put_eight(above % EIGHT_DIGITS, out);
    }
    put_eight(last, out);
}

/// Appends the first digits of a number, at most eight.
#[inline]
fn put_first(number: u64, out: &mut Vec<u8>) {
    let digits = eight_digits(number);
    let zeros = digits.trailing_zeros() / 8;
    put_bytes((digits | ZEROS) >> (8 * zeros), 8 - zeros as usize, out);
}

/// Appends the next eight.
#[inline]
fn put_eight(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&(eight_digits(number) | ZEROS).to_le_bytes());
}

/// The digits of a number that has at most eight, one in each byte, the first one lowest.
#[inline]
fn eight_digits(number: u64) -> u64 {
    // All fours of digits, then all pairs, then all digits are parted at once. What stands for the
    // division by 100 and by 10 is exact for as many digits as there are.
    let fours = (number / 10_000) | ((number % 10_000) << 32);
    let hundreds = (fours * 10_486) >> 20 & 0x0000_007f_0000_007f;
    let pairs = hundreds | (fours - 100 * hundreds) << 16;
    let tens = (pairs * 103) >> 10 & 0x000f_000f_000f_000f;
    tens | (pairs - 10 * tens) << 8
}

/// Appends the lowest bytes of a word.
#[inline]
fn put_bytes(word: u64, length: usize, out: &mut Vec<u8>) {
    let end = out.len() + length;
    out.extend_from_slice(&word.to_le_bytes());
    out.truncate(end);
}

/// Appends a text with its quotes.
#[inline]
pub(super) fn put_text(text: &str, out: &mut Vec<u8>) {
    let (bytes, begin) = (text.as_bytes(), out.len());
    out.push(b'"');
    let is_plain = match bytes.len() {
        0..8 => put_short(bytes, out),
        8..16 => put_middle(bytes, out),
        16.. => put_long(bytes, out),
    };
    if !is_plain {
        out.truncate(begin + 1);
        put_escaped(bytes, out);
        out.push(b'"');
    }
}

/// Appends a text of 16 bytes or more and a quote; whether nothing in it was to be escaped.
#[inline(never)]
fn put_long(bytes: &[u8], out: &mut Vec<u8>) -> bool {
    let Some(last) = bytes.last_chunk::<16>() else { return false };
    let find = |found, eight: &[u8; 8]| found | special(u64::from_le_bytes(*eight));
    let end = out.len() + bytes.len();
    let mut found = last.as_chunks().0.iter().fold(0, find);
    for chunk in bytes.as_chunks::<16>().0 {
        found = chunk.as_chunks().0.iter().fold(found, find);
        out.extend_from_slice(chunk);
    }
    // The last ones once more, over what was appended of them.
    out.truncate(end - last.len());
    out.extend_from_slice(last);
    out.push(b'"');
    found & HIGHS == 0
}

/// Appends a text of eight bytes or more, but at most 16, likewise.
#[inline]
fn put_middle(bytes: &[u8], out: &mut Vec<u8>) -> bool {
    let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) else {
        return false;
    };
    let end = out.len() + bytes.len();
    out.extend_from_slice(first);
    out.truncate(end - last.len());
    out.extend_from_slice(last);
    out.push(b'"');
    let found = [first, last].map(|eight| special(u64::from_le_bytes(*eight)));
    (found[0] | found[1]) & HIGHS == 0
}

/// Appends a text of less than eight bytes, likewise.
#[inline]
fn put_short(bytes: &[u8], out: &mut Vec<u8>) -> bool {
    let (word, bits) = (short_word(bytes), 8 * bytes.len());
    put_bytes(word | u64::from(b'"') << bits, bytes.len() + 1, out);
    is_short_plain(word, bits)
}

/// Less than eight bytes as a word, the first one lowest.
#[inline]
fn short_word(bytes: &[u8]) -> u64 {
    match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        (Some(first), Some(last)) => {
            let [first, last] = [first, last].map(|four| u64::from(u32::from_le_bytes(*four)));
            first | last << (8 * bytes.len() - 32)
        }
        _ => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// Whether nothing is to be escaped in the lowest bits of a word, less than all.
#[inline]
fn is_short_plain(word: u64, bits: usize) -> bool {
    special(word | (ONES * 0x20) << bits) & HIGHS == 0
}

/// Whether nothing in a text is to be escaped.
#[inline]
#[must_use]
pub fn is_plain(text: &str) -> bool {
    let bytes = text.as_bytes();
    let Some(last) = bytes.last_chunk::<8>() else {
        return is_short_plain(short_word(bytes), 8 * bytes.len());
    };
    let is_plain = |eight: &[u8; 8]| special(u64::from_le_bytes(*eight)) & HIGHS == 0;
    is_plain(last) && bytes.as_chunks().0.iter().all(is_plain)
}

const ONES: u64 = u64::from_ne_bytes([1; 8]);
const ZEROS: u64 = u64::from_ne_bytes([b'0'; 8]);
/// The highest bit of each byte.
pub(super) const HIGHS: u64 = ONES << 7;

/// Sets the highest bit of a byte if one of the bytes is a control character, a quote or a backslash:
/// of the lowest one that is, and maybe of some above it.
#[inline]
pub(super) fn special(word: u64) -> u64 {
    is_below(word, 0x20)
        | is_below(word ^ (ONES * u64::from(b'"')), 1)
        | is_below(word ^ (ONES * u64::from(b'\\')), 1)
}

/// Sets the highest bit of a byte if one of the bytes is below `limit`, at most 128.
#[inline]
fn is_below(word: u64, limit: u8) -> u64 {
    word.wrapping_sub(ONES * u64::from(limit)) & !word
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
