//! Which older requests a request supersedes.

use serde::{Deserialize, Serialize};

/// The most bytes of the name of a group.
pub const GROUP_BYTES_MAX: usize = 256;

/// How many superseded requests to remember. A client whose daemon ended before it could report the
/// refusal usually asks again within seconds.
pub const SUPERSEDED_MAX: usize = 256;

/// The group of a request, and which older requests of it the request supersedes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Supersede {
    /// The name of its group. Requests without a name form a group if they have the same keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Box<str>>,
    /// Which requests of its group it supersedes, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub which: Option<Superseded>,
}

impl Supersede {
    /// A copy with this group that supersedes no request.
    #[must_use]
    pub fn but_none(mut self: Box<Self>) -> Box<Self> {
        self.which = None;
        self
    }
}

/// The older requests that a request supersedes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Superseded {
    /// Those that wait: they are refused.
    Waiting,
    /// Also those that hold. Their clients are not refused; the client of the new request ends
    /// their processes. A client can do so under every configuration of the daemon, because it may
    /// signal the processes of its own user.
    Running,
}
