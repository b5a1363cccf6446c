//! The `[socket]` table of the configuration: the users who may connect to a socket that the daemon
//! creates. A socket from the service manager has the group and the mode that its unit names.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};
use toml::Spanned;

use crate::permissions::{Group, GroupNamed, find};

/// The group and the mode of a socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SocketAccess {
    /// `None` keeps the group of the daemon.
    pub group: Option<Group>,
    /// `None` means 0666 at a shared place, and 0600 elsewhere.
    pub mode: Option<u32>,
}

/// `[socket]` as the file contains it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Section {
    group: Option<Spanned<GroupNamed>>,
    #[serde(deserialize_with = "mode")]
    mode: Option<u32>,
}

/// A mode, as text in octal (`"0660"`) or as an octal number of TOML (`0o660`).
fn mode<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    struct Either;
    impl Visitor<'_> for Either {
        type Value = Option<u32>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a mode in octal, such as \"0660\"")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
            let is_octal = !text.is_empty() && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
            permitted(u32::from_str_radix(text, 8).ok().filter(|_| is_octal))
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
            permitted(u32::try_from(number).ok())
        }
    }
    from.deserialize_any(Either)
}

/// Checks that these are permission bits and include those that the daemon's own user needs.
fn permitted<E: Error>(bits: Option<u32>) -> Result<Option<u32>, E> {
    if bits.is_some_and(|bits| bits <= 0o777 && bits & 0o600 == 0o600) {
        return Ok(bits);
    }
    Err(E::custom(
        "`mode` is octal, at most \"0777\", and must let the daemon itself read and write, such as \
         \"0660\"",
    ))
}

impl Section {
    /// Whether the section contains the name of a group, which has to be looked up.
    pub(crate) fn looks_up_groups(&self) -> bool {
        self.group.as_ref().is_some_and(|group| group.get_ref().is_name())
    }

    /// Converts the section, and looks up the name of a group.
    ///
    /// # Errors
    /// The offset of the mistake, and its description.
    pub(crate) fn access(&self) -> Result<SocketAccess, (usize, String)> {
        let group = |named: &Spanned<GroupNamed>| {
            find(named.get_ref()).map_err(|what| (named.span().start, what))
        };
        Ok(SocketAccess { group: self.group.as_ref().map(group).transpose()?, mode: self.mode })
    }
}
