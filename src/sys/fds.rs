//! Descriptors: sending them along, and what is open.
//!
//! Every descriptor that is made here is close-on-exec, but for [`inherit`]'s.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::kernel::{Feature, allows};

/// The most descriptors that come with one message.
pub const FDS_MAX: usize = 4;

/// Sends bytes, and with the first of them descriptors (SCM_RIGHTS, may be none). Returns how many
/// bytes went; the descriptors went if that is not 0. Never raises SIGPIPE. `flags` may hold
/// `MSG_DONTWAIT`.
///
/// # Errors
/// `InvalidInput` if there are descriptors but no bytes, or more than [`FDS_MAX`]; EPIPE, EAGAIN,
/// EINTR and the like as send(2) says.
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: i32,
) -> io::Result<usize> {
    if fds.len() > FDS_MAX || (bytes.is_empty() && !fds.is_empty()) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = MsgFlags::from_bits_retain(flags) | MsgFlags::MSG_NOSIGNAL;
    if fds.is_empty() {
        // The kernel has less to read for it than for sendmsg(2).
        return Ok(nix::sys::socket::send(socket.as_raw_fd(), bytes, flags)?);
    }
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    Ok(sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], &rights, flags, None)?)
}

/// Receives bytes into `buffer`, and the descriptors that came with them (close-on-exec) into
/// `fds`; more than [`FDS_MAX`] are closed. 0 is the end.
///
/// # Errors
/// EAGAIN, EINTR, ECONNRESET and the like as recvmsg(2) says; nothing was received then.
pub fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    flags: i32,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::from_bits_retain(flags.cast_unsigned()) | RecvFlags::CMSG_CLOEXEC;
    let message = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    fds.extend(rights.flatten().take(FDS_MAX));
    Ok(message.bytes)
}

/// Closes every descriptor from `first` on. For a process that is about to become something else:
/// whoever still has one of them as an [`OwnedFd`] must not use or drop it.
pub fn close_from(first: u32) {
    if !(allows(Feature::CloseRange) && close_range_from(first)) {
        close_up_to(first, highest_open());
    }
}

/// Closes every descriptor from `first` on but those to keep; as [`close_from`].
pub fn close_from_except(first: u32, keep: &[BorrowedFd<'_>]) {
    let mut keep: Vec<u32> =
        keep.iter().filter_map(|fd| u32::try_from(fd.as_raw_fd()).ok()).collect();
    keep.sort_unstable();
    let mut next = first;
    for kept in keep.into_iter().filter(|kept| *kept >= first) {
        if next < kept {
            close_up_to(next, kept - 1);
        }
        next = kept + 1;
    }
    close_from(next);
}

/// `close_range` (Linux 5.9); whether the kernel has it and lets us use it.
pub(super) fn close_range_from(first: u32) -> bool {
    // SAFETY: it takes three integers; what closing means is said at `close_from`.
    unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) == 0 }
}

/// Closes from `first` to `last`, both included, whether open or not. Async-signal-safe.
pub(super) fn close_up_to(first: u32, last: u32) {
    for fd in first..=last {
        if let Ok(fd) = RawFd::try_from(fd) {
            // SAFETY: it takes an integer; what closing means is said at `close_from`.
            unsafe { libc::close(fd) };
        }
    }
}

/// The highest open descriptor as /proc tells, else the highest that there could be.
pub(super) fn highest_open() -> u32 {
    let listed = std::fs::read_dir("/proc/self/fd").ok().and_then(|entries| {
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).max()
    });
    listed.unwrap_or_else(|| {
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        // A limit can be unlimited; 2^20 is the most that the kernel allows by default.
        u32::try_from(limit.min(1 << 20)).unwrap_or(1024)
    })
}

/// Takes over a descriptor that this process was started with under an agreed number, and makes
/// it close-on-exec. To be called once for a number, before anything else may have got it.
///
/// # Errors
/// EBADF if there is none.
pub fn adopt(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: only looked at by fcntl, which fails if it is not open.
    set_cloexec(unsafe { BorrowedFd::borrow_raw(number) })?;
    // SAFETY: it is open, and by the agreement nobody else in this process knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Raises the soft limit of open descriptors to the hard one, and both to `at_least` where that is
/// allowed; returns the limit in force.
pub fn raise_limit(at_least: u64) -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if hard < at_least && setrlimit(Resource::RLIMIT_NOFILE, at_least, at_least).is_ok() {
        return Ok(at_least);
    }
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

/// A pipe, both ends close-on-exec: the end to read from, then the end to write to.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(nix::unistd::pipe2(OFlag::O_CLOEXEC)?)
}

/// Makes that a descriptor is not passed on to the next program.
pub fn set_cloexec(fd: BorrowedFd<'_>) -> io::Result<()> {
    fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    Ok(())
}

/// Makes that a descriptor is passed on to the next program.
pub fn clear_cloexec(fd: BorrowedFd<'_>) -> io::Result<()> {
    fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
    Ok(())
}

/// Moves a descriptor to the lowest free number that is `at_least` so high, where it is passed on
/// to the next program and in nobody's way; to a lower one if the limit of open descriptors is
/// below that, but never to 0, 1 or 2. It stays open as long as the process lives.
pub fn inherit(fd: OwnedFd, at_least: i32) -> io::Result<RawFd> {
    let mut at_least = at_least.max(3);
    loop {
        match fcntl(&fd, FcntlArg::F_DUPFD(at_least)) {
            // EINVAL: at or above the limit; EMFILE: nothing is free from there to the limit.
            Err(Errno::EINVAL | Errno::EMFILE) if at_least > 3 => at_least = (at_least / 2).max(3),
            result => return Ok(result?),
        }
    }
}

#[cfg(test)]
mod tests;
