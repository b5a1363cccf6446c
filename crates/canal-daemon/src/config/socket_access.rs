//! The users who may connect to a socket that the daemon creates: `[socket]` of the configuration.
//!
//! A socket from the service manager has the group and the mode that its unit names.

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
