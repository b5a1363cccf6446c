//! Which users may connect to a socket that the daemon makes: `[socket]` of the configuration.
//!
//! A socket that the service manager passes has the group and the mode that its unit names.

/// The group and the mode of a socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SocketAccess {
    /// `None` leaves it the group of the daemon.
    pub(crate) group: Option<SocketGroup>,
    /// `None` is 0666 at a shared place, else 0600.
    pub(crate) mode: Option<u32>,
}

/// The group of a socket, and its name in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SocketGroup {
    pub(crate) gid: u32,
    pub(crate) called: String,
}
