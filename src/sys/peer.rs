//! Who is at the other end of a Unix socket, as the kernel tells.

use std::io;
use std::os::fd::BorrowedFd;

use super::pidfd::Pidfd;

/// Credentials at the time of connect(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The process's number; 0 if it has none in our pid namespace.
    pub pid: u32,
    /// Its effective user, as seen from our user namespace.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// `SO_PEERCRED`.
pub fn credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    let _ = socket;
    todo!()
}

/// The process at the other end: `SO_PEERPIDFD` (Linux 6.5; works after its death too), else
/// `SO_PEERCRED` and pidfd_open with a check that the number was not reused: `accepted_ticks` is
/// the time (clock ticks since boot) at which the connection was accepted; a process that started
/// later is another one. `None` means it is gone.
pub fn pidfd(socket: BorrowedFd<'_>, accepted_ticks: u64) -> io::Result<Option<Pidfd>> {
    let _ = (socket, accepted_ticks);
    todo!()
}

/// Now, in clock ticks since boot, the unit of a process's start time.
#[must_use]
pub fn ticks_now() -> u64 {
    todo!()
}
