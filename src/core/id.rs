//! Numbers that name things, each a type of its own.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::text::Text;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// The position of an entry in the log; the first entry has revision 1.
    Revision
}
number! {
    /// Names a request: the revision of the entry that asked.
    RequestId
}
number! {
    /// Names a frame: the revision of the request that opened it.
    FrameId
}
number! {
    /// A fencing token: +1 per grant of the table, never reused, never smaller than an earlier one.
    Token
}
number! {
    /// Which host's daemon watches an owner; 0 is the only host of an embedded journal.
    HostId
}
number! {
    /// Milliseconds since 1970-01-01 UTC by the proposer's clock. Shown, never decided upon.
    UnixMillis
}

/// 32 hexadecimal digits.
fn hex(bits: u128) -> [u8; 32] {
    let mut digits = [b'0'; 32];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(bits.to_be_bytes()) {
        let digit = |nibble: u8| b"0123456789abcdef"[usize::from(nibble)];
        pair.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
    }
    digits
}

fn hex_text(digits: &[u8; 32]) -> &str {
    std::str::from_utf8(digits).unwrap_or_default()
}

macro_rules! hex_name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(hex_text(&hex(self.0)))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl std::str::FromStr for $name {
            type Err = &'static str;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                const EXPECTED: &str = concat!($what, " is 32 hexadecimal digits");
                let hex = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
                if !hex {
                    return Err(EXPECTED);
                }
                u128::from_str_radix(text, 16).map(Self).map_err(|_| EXPECTED)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(hex_text(&hex(self.0)))
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(Text(str::parse))
            }
        }
    };
}

hex_name! {
    /// A client-made random name of a request.
    ///
    /// It makes asking idempotent: a client whose answer was lost asks for the same tag again and
    /// gets the same grant, not a second one (the hole of ZOOKEEPER-1262).
    Tag, "a tag"
}
hex_name! {
    /// Names a lease: the first half of the SHA-256 of its handle.
    ///
    /// The handle itself is a secret and never in the table, which logs, snapshots and other hosts
    /// see. Its 128 random bits cannot be found from this.
    LeaseId, "the name of a lease"
}
