//! Identifiers and numbers, each with its own type.

use std::borrow::Cow;
use std::fmt;

use serde::de::Error;
use serde::{Deserialize, Serialize};

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident,)*) => {$(
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
    )*};
}

numbers! {
    /// The position of an entry in the log; the first entry has revision 1.
    Revision,
    /// Identifies a request: the revision of the entry that made it.
    RequestId,
    /// Identifies a frame: the revision of the request that opened it.
    FrameId,
    /// A fencing token. It increases by at least 1 with each grant of the table, and is never
    /// reused.
    Token,
    /// The host whose daemon watches an owner; 0 is the only host of an embedded journal.
    HostId,
    /// Milliseconds since 1970-01-01 UTC by the proposer's clock. Shown, but no decision depends on
    /// it.
    UnixMillis,
}

impl Token {
    /// A token from the clock: Unix seconds times 2^20, to the millisecond. It is larger than every
    /// earlier token, unless the clock is wrong.
    pub fn by_clock(now: UnixMillis) -> Self {
        Self(now.0.saturating_mul(1 << 20) / 1000)
    }
}

/// The number that 32 hexadecimal digits represent.
fn bits(text: &str) -> Option<u128> {
    // `from_str_radix` alone would accept a sign.
    let has_form = text.len() == 32 && !text.starts_with('+');
    has_form.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

/// Passes on the 32 hexadecimal digits of a number. Faster than `{:032x}`: each record of a request
/// has a tag.
fn with_digits<T>(bits: u128, then: impl FnOnce(&str) -> T) -> T {
    let digit = |at| b"0123456789abcdef"[(bits >> (4 * (31 - at))) as usize & 15];
    let digits: [u8; 32] = std::array::from_fn(digit);
    then(str::from_utf8(&digits).unwrap_or_default())
}

/// Text that is not copied, unless it has escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

macro_rules! hex_names {
    ($($(#[$doc:meta])* $name:ident = $what:literal,)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                with_digits(self.0, |digits| f.write_str(digits))
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
                bits(text).map(Self).ok_or(concat!($what, " is 32 hexadecimal digits"))
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                with_digits(self.0, |digits| serializer.serialize_str(digits))
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Text::deserialize(deserializer)?.0.parse().map_err(Error::custom)
            }
        }
    )*};
}

hex_names! {
    /// A random name that the client chooses for a request.
    ///
    /// It makes requests idempotent: a client that lost the answer sends the same tag again and
    /// gets the same grant, not a second one (the flaw in ZOOKEEPER-1262).
    #[derive(Default)]
    Tag = "a tag",
    /// Identifies a lease: the first half of the SHA-256 of its handle.
    ///
    /// The handle itself is a secret and never enters the table, which logs, snapshots and other
    /// hosts see. Its 128 random bits cannot be recovered from this hash.
    LeaseId = "the name of a lease",
    /// Identifies a node: the first half of the SHA-256 of its machine's id, the folder of its
    /// socket and its user.
    NodeId = "the id of a node",
    /// The random name that a client chooses for a request over nodes, the same on all of them. It
    /// is public and authorises nothing.
    RunId = "the id of a run",
}

/// A process, identified within one boot and one pid namespace even if its pid is reused.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ProcessId {
    /// Its number in the daemon's pid namespace; 0 if it has none there.
    pub pid: u32,
    /// The time of its start, in clock ticks since boot (field 22 of `/proc/PID/stat`). 0 if it is
    /// not visible, or if the inode is enough to identify the process.
    pub started: u64,
    /// The inode of its pidfd, unique within a boot if the kernel has pidfs (6.9), else 0.
    #[serde(default)]
    pub inode: u64,
}

pub(super) fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_32_hexadecimal_digits_of_either_case_and_nothing_else() {
        let tag: Tag = "00112233445566778899aAbBcCdDeEfF".parse().unwrap();
        assert_eq!(tag, Tag(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff));
        assert_eq!(tag.to_string(), "00112233445566778899aabbccddeeff");
        for at in 0..32 {
            for byte in 0..=0x7f_u8 {
                let mut text = "7".repeat(32).into_bytes();
                text[at] = byte;
                let text = String::from_utf8(text).unwrap();
                let expected = byte.is_ascii_hexdigit().then(|| u128::from_str_radix(&text, 16));
                let expected = expected.map(|bits| Tag(bits.unwrap()));
                assert_eq!(text.parse::<Tag>().ok(), expected, "{text:?}");
            }
        }
        for wrong in ["", "7", &"7".repeat(31), &"7".repeat(33), &"é".repeat(16)] {
            assert!(wrong.parse::<Tag>().is_err(), "{wrong:?}");
        }
    }
}
