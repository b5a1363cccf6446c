//! Writes texts, names and numbers as JSON.

/// Appends `begin`, a name in which nothing has to be escaped, and a colon.
pub(super) fn put_name(begin: u8, name: &str, out: &mut Vec<u8>) {
    out.push(begin);
    put_known(name, out);
    out.push(b':');
}

/// Appends a text known at compile time or checked before, in which nothing has to be escaped.
pub(super) fn put_known(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

/// Appends a number.
pub(super) fn put_number(number: impl itoa::Integer, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Whether nothing in a text has to be escaped.
#[must_use]
pub fn is_plain(text: &str) -> bool {
    // Without an early exit the compiler can check many bytes at once.
    let special = |byte: u8| byte < 0x20 || byte == b'"' || byte == b'\\';
    !text.bytes().fold(false, |found, byte| found | special(byte))
}
