//! Splits a byte stream into messages, and the reverse. No I/O.
//!
//! A message is one JSON object, ended by a NUL byte. JSON never contains a raw NUL (strings escape
//! it), so the end of a message can be found without parsing.
//!
//! Invariant: the messages from a [`Decoder`] do not depend on how the bytes were split on arrival.

use std::ffi::CStr;

use canal_text::small_pieces::SmallPieces;
use serde::{Deserialize, Serialize};

/// The most bytes of one call, without the NUL.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// The most bytes of one reply, without the NUL: a status may name tens of thousands of waiters.
pub const REPLY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Ends each message.
const END: u8 = 0;

/// An empty decoder keeps at most this much room, so that thousands of silent connections are
/// cheap.
const ROOM_KEPT: usize = 1024;

/// Why bytes are not a message.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// A message is longer than its receiver accepts; nothing after it can be read.
    #[error("a message exceeds {0} bytes")]
    TooLarge(usize),
    /// A message is not JSON, or not an object of the expected form.
    #[error("not a message: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// Takes bytes as they arrive, and yields whole messages.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// The start of the first message that was not yielded.
    start: usize,
    /// The position up to which no end was found.
    scanned: usize,
    /// The most bytes of a message, without its end.
    max: usize,
}

impl Decoder {
    /// A decoder of messages of at most `max` bytes, without the NUL.
    pub fn new(max: usize) -> Self {
        Self { buffer: Vec::new(), start: 0, scanned: 0, max }
    }

    /// Adds bytes.
    ///
    /// It keeps all bytes. The caller bounds them by calling [`Self::next_message`] until there is
    /// no message before it feeds more.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, without its end; `None` if it needs more bytes. A message may be
    /// empty or malformed: [`parse`] decides.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`], at each call from then on: the start of the next message is
    /// unknown.
    pub fn next_message(&mut self) -> Result<Option<&[u8]>, FrameError> {
        if self.start == self.buffer.len() {
            self.drop_room(ROOM_KEPT);
            return Ok(None);
        }
        // The standard library's search for a NUL is a fast one.
        let end = CStr::from_bytes_until_nul(&self.buffer[self.scanned..]).ok();
        let end = end.map(CStr::count_bytes);
        let length = end.map_or(self.buffer.len(), |at| self.scanned + at) - self.start;
        if length > self.max {
            return Err(FrameError::TooLarge(self.max));
        }
        if end.is_none() {
            self.scanned = self.buffer.len();
            return Ok(None);
        }
        let first = self.start;
        self.start = first + length + 1;
        self.scanned = self.start;
        Ok(Some(&self.buffer[first..first + length]))
    }

    /// Whether a whole message is ready.
    pub fn has_message(&self) -> bool {
        self.buffer[self.scanned..].contains(&END)
    }

    /// Releases unused memory.
    pub fn save_memory(&mut self) {
        self.drop_room(0);
    }

    fn drop_room(&mut self, kept: usize) {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.buffer.shrink_to(kept);
            self.start = 0;
            self.scanned = 0;
        }
    }
}

/// Reads one message.
///
/// # Errors
/// [`FrameError::Malformed`].
pub fn parse<'a, T: Deserialize<'a>>(message: &'a [u8]) -> Result<T, FrameError> {
    Ok(serde_json::from_slice(message)?)
}

/// Reads the parameters of a reply that is the last one and no error in one pass; [`parse`] leaves
/// the parameters for a second pass. `None` for any other reply, or an invalid one.
pub fn parse_last_reply<'a, T: Deserialize<'a>>(message: &'a [u8]) -> Option<T> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct LastReply<T> {
        parameters: T,
    }
    serde_json::from_slice(message).ok().map(|LastReply { parameters }| parameters)
}

/// Appends a message and its end to `out`, which stays unchanged on an error.
///
/// # Errors
/// [`FrameError::Malformed`] if the value has no JSON form.
pub fn append<T: Serialize>(message: &T, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let before = out.len();
    serde_json::to_writer(SmallPieces(out), message).inspect_err(|_| out.truncate(before))?;
    out.push(END);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// Whether a message has begun and not ended.
    fn is_partial(decoder: &Decoder) -> bool {
        decoder.start < decoder.buffer.len()
    }

    fn drain(decoder: &mut Decoder) -> Vec<Vec<u8>> {
        let mut messages = Vec::new();
        while let Some(message) = decoder.next_message().unwrap() {
            messages.push(message.to_vec());
        }
        messages
    }

    #[test]
    fn a_cut_at_any_byte_changes_nothing() {
        let values = [json!({"method": "a.B"}), json!({"x": "\u{0}"}), json!({})];
        let mut stream = Vec::new();
        for value in &values {
            append(value, &mut stream).unwrap();
        }
        for cut in 0..=stream.len() {
            let mut decoder = Decoder::new(64);
            decoder.feed(&stream[..cut]);
            let mut messages = drain(&mut decoder);
            decoder.feed(&stream[cut..]);
            messages.extend(drain(&mut decoder));
            let parsed: Vec<Value> = messages.iter().map(|m| parse(m).unwrap()).collect();
            assert_eq!(parsed, values, "cut at {cut}");
            assert!(!is_partial(&decoder));
        }
    }

    #[test]
    fn byte_by_byte_input_gives_the_same_messages() {
        let mut decoder = Decoder::new(16);
        let mut messages = Vec::new();
        for byte in b"{\"a\":1}\0{\"b\":2}\0" {
            decoder.feed(&[*byte]);
            messages.extend(drain(&mut decoder));
        }
        assert_eq!(messages, [b"{\"a\":1}", b"{\"b\":2}"]);
    }

    #[test]
    fn a_message_at_the_cap_passes_and_one_past_it_does_not() {
        for (length, ended, passes) in
            [(8, true, true), (9, true, false), (8, false, true), (9, false, false)]
        {
            let mut decoder = Decoder::new(8);
            let mut bytes = vec![b'x'; length];
            if ended {
                bytes.push(END);
            }
            decoder.feed(&bytes);
            assert_eq!(decoder.next_message().is_ok(), passes, "{length} bytes, ended: {ended}");
        }
    }

    #[test]
    fn messages_before_one_that_is_too_large_are_yielded_and_none_after_it() {
        let mut decoder = Decoder::new(4);
        decoder.feed(b"{}\0xxxxx\0{}\0");
        assert_eq!(decoder.next_message().unwrap(), Some(&b"{}"[..]));
        for _ in 0..3 {
            assert!(matches!(decoder.next_message(), Err(FrameError::TooLarge(4))));
        }
    }

    #[test]
    fn each_of_several_nuls_ends_an_empty_message_that_is_malformed() {
        let mut decoder = Decoder::new(4);
        decoder.feed(b"\0\0{}\0");
        let messages = drain(&mut decoder);
        assert_eq!(messages, [&b""[..], b"", b"{}"]);
        assert!(matches!(parse::<Value>(&messages[0]), Err(FrameError::Malformed(_))));
    }

    #[test]
    fn a_begun_message_is_partial() {
        let mut decoder = Decoder::new(8);
        assert!(!is_partial(&decoder));
        decoder.feed(b"{}\0{");
        assert!(decoder.has_message());
        assert_eq!(drain(&mut decoder).len(), 1);
        assert!(is_partial(&decoder));
        assert!(!decoder.has_message());
    }

    #[test]
    fn an_empty_decoder_gives_its_room_back() {
        let mut decoder = Decoder::new(1 << 20);
        decoder.feed(&[b'x'; 1 << 16]);
        decoder.feed(b"\0");
        assert_eq!(drain(&mut decoder).len(), 1);
        assert!(decoder.buffer.capacity() <= ROOM_KEPT);
    }

    #[test]
    fn a_value_without_json_form_leaves_the_output_as_it_was() {
        let mut out = b"{}\0".to_vec();
        let unprintable = BTreeMap::from([((1, 2), 3)]);
        assert!(append(&unprintable, &mut out).is_err());
        assert_eq!(out, b"{}\0");
    }

    #[test]
    fn only_a_last_reply_that_is_no_error_is_read_in_one_pass() {
        for (message, read) in [
            (r#"{"parameters":{"pid":7}}"#, Some(7)),
            (r#"{"parameters":{"pid":7},"continues":true}"#, None),
            (r#"{"parameters":{"pid":7},"error":"io.canal.Lock.Refused"}"#, None),
            (r#"{"error":"io.canal.Lock.Refused","parameters":{"pid":7}}"#, None),
            (r#"{"parameters":{"pid":7}}}"#, None),
            (r#"{"parameters":{"pid":7}"#, None),
            (r#"{ "parameters":{"pid":7}}"#, Some(7)),
            ("{}", None),
            ("", None),
        ] {
            let stopping = parse_last_reply::<crate::Stopping>(message.as_bytes());
            assert_eq!(stopping.map(|stopping| stopping.pid), read, "{message}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_split_at_the_nuls(
            pieces in proptest::collection::vec(
                proptest::collection::vec(prop_oneof![Just(END), any::<u8>()], 0..40),
                0..20,
            )
        ) {
            let stream = pieces.concat();
            let mut expected: Vec<&[u8]> = stream.split(|byte| *byte == END).collect();
            let rest = expected.pop().unwrap_or_default();
            let mut decoder = Decoder::new(1000);
            let mut messages = Vec::new();
            for piece in &pieces {
                decoder.feed(piece);
                messages.extend(drain(&mut decoder));
            }
            prop_assert_eq!(messages, expected);
            prop_assert_eq!(is_partial(&decoder), !rest.is_empty());
        }
    }
}
