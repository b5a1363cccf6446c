//! The `[socket]` table of the configuration: the users who may connect to a socket that the daemon
//! creates. A socket from the service manager has the group and the mode that its unit names.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Visitor};
use toml::Spanned;

use crate::permissions::{GroupNamed, find};

/// The group and the mode of a socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SocketAccess {
    /// `None` keeps the group of the daemon.
    pub group: Option<SocketGroup>,
    /// `None` means 0666 at a shared place, and 0600 elsewhere.
    pub mode: Option<u32>,
}

/// The group of a socket, and its name in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SocketGroup {
    pub gid: u32,
    pub called: String,
}

/// `[socket]` as the file contains it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Section {
    group: Option<Spanned<GroupNamed>>,
    mode: Option<Spanned<Mode>>,
}

/// A mode, as text in octal (`"0660"`) or as an octal number of TOML (`0o660`).
#[derive(Debug)]
enum Mode {
    Text(String),
    Number(i64),
}

impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Mode;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mode in octal, such as \"0660\"")
            }

            fn visit_str<E>(self, text: &str) -> Result<Mode, E> {
                Ok(Mode::Text(text.to_owned()))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Mode, E> {
                Ok(Mode::Number(number))
            }
        }
        from.deserialize_any(Either)
    }
}

impl Mode {
    /// The mode bits, if they are permission bits and include those that the daemon's own user
    /// needs.
    fn bits(&self) -> Option<u32> {
        let bits = match self {
            Self::Text(text) => {
                let is_octal = !text.is_empty() && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
                u32::from_str_radix(text, 8).ok().filter(|_| is_octal)?
            }
            Self::Number(number) => u32::try_from(*number).ok()?,
        };
        (bits <= 0o777 && bits & 0o600 == 0o600).then_some(bits)
    }
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
        let group = self.group.as_ref().map(group).transpose()?;
        let mode = self.mode.as_ref().map(mode).transpose()?;
        Ok(SocketAccess { group, mode })
    }
}

fn group(named: &Spanned<GroupNamed>) -> Result<SocketGroup, (usize, String)> {
    let found = find(named.get_ref()).map_err(|what| (named.span().start, what))?;
    Ok(SocketGroup { gid: found.gid, called: found.called })
}

fn mode(mode: &Spanned<Mode>) -> Result<u32, (usize, String)> {
    let what = "`mode` is octal, at most \"0777\", and must let the daemon itself read and write, \
                such as \"0660\"";
    mode.get_ref().bits().ok_or_else(|| (mode.span().start, what.to_owned()))
}
