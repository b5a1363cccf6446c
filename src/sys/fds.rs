//! Descriptors: sending them along, and what is open.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// The most descriptors that come with one message.
pub const FDS_MAX: usize = 4;

/// Sends bytes, and with the first of them descriptors (SCM_RIGHTS, may be none). Returns how many
/// bytes went; the descriptors went if that is not 0. Never raises SIGPIPE. `flags` may hold
/// `MSG_DONTWAIT`.
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: i32,
) -> io::Result<usize> {
    let _ = (socket, bytes, fds, flags);
    todo!()
}

/// Receives bytes into `buffer`, and the descriptors that came with them (close-on-exec) into
/// `fds`; more than [`FDS_MAX`] are closed. 0 is the end.
pub fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    flags: i32,
) -> io::Result<usize> {
    let _ = (socket, buffer, fds, flags);
    todo!()
}

/// Closes every descriptor from `first` on.
pub fn close_from(first: u32) {
    let _ = first;
    todo!()
}

/// Raises the soft limit of open descriptors to the hard one; returns the limit in force.
pub fn raise_limit() -> io::Result<u64> {
    todo!()
}
