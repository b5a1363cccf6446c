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
    // The digits end in the middle, so that as many bytes as the longest number has can be copied,
    // wherever it begins.
    let mut room = [b'0'; 2 * DIGITS_MAX];
    let (mut rest, mut at) = (number, DIGITS_MAX);
    let mut put = |at: usize, pair: u64| {
        room[at..at + 2].copy_from_slice(&PAIRS[pair as usize]);
    };
    while rest >= 10_000 {
        let four = rest % 10_000;
        rest /= 10_000;
        at -= 4;
        put(at, four / 100);
        put(at + 2, four % 100);
    }
    if rest >= 100 {
        at -= 2;
        put(at, rest % 100);
        rest /= 100;
    }
    at -= 2;
    put(at, rest);
    // A pair may begin with a zero.
    at += usize::from(rest < 10);
    if let Some(digits) = room[at..].first_chunk::<DIGITS_MAX>() {
        let end = out.len() + DIGITS_MAX - at;
        out.extend_from_slice(digits);
        out.truncate(end);
    }
}

/// Appends a text with its quotes.
#[inline]
pub(super) fn put_text(text: &str, out: &mut Vec<u8>) {
    let (bytes, begin) = (text.as_bytes(), out.len());
    out.reserve(bytes.len() + 2);
    out.push(b'"');
    let is_plain = match bytes.last_chunk::<8>() {
        Some(last) => put_long(bytes, last, out),
        None => put_short(bytes, out),
    };
    if !is_plain {
        out.truncate(begin + 1);
        put_escaped(bytes, out);
    }
    out.push(b'"');
}

/// Appends a text of eight bytes or more, with these at its end; whether nothing in it was to be
/// escaped.
#[inline]
fn put_long(bytes: &[u8], last: &[u8; 8], out: &mut Vec<u8>) -> bool {
    let end = out.len() + bytes.len();
    let mut found = special(u64::from_ne_bytes(*last));
    for eight in bytes.as_chunks::<8>().0 {
        found |= special(u64::from_ne_bytes(*eight));
        out.extend_from_slice(eight);
    }
    // The last ones once more, over what was appended of them.
    out.truncate(end - last.len());
    out.extend_from_slice(last);
    found & HIGHS == 0
}

/// Appends a text of less than eight bytes, likewise.
#[inline]
fn put_short(bytes: &[u8], out: &mut Vec<u8>) -> bool {
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        let end = out.len() + bytes.len();
        out.extend_from_slice(first);
        out.truncate(end - last.len());
        out.extend_from_slice(last);
        let both = [u32::from_ne_bytes(*first), u32::from_ne_bytes(*last)].map(u64::from);
        return special(both[0] << 32 | both[1]) & HIGHS == 0;
    }
    let mut is_plain = true;
    for byte in bytes {
        is_plain &= *byte >= 0x20 && *byte != b'"' && *byte != b'\\';
        out.push(*byte);
    }
    is_plain
}

const ONES: u64 = u64::from_ne_bytes([1; 8]);
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
