//! Sends, receives, polls and closes descriptors, and finds out which are open.
//!
//! Every descriptor that this module creates is close-on-exec, except the result of [`inherit`].

use std::fs::OpenOptions;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::unistd::{dup2_stdin, dup2_stdout};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::kernel::{Feature, allows};

/// The maximum number of descriptors in one message.
pub const FDS_MAX: usize = 4;

/// Sends bytes and attaches descriptors (possibly none) to the first byte (SCM_RIGHTS). Returns the
/// number of bytes sent; unless it is 0, the descriptors were sent too. Never raises SIGPIPE.
/// `flags` may contain `MSG_DONTWAIT`.
///
/// # Errors
/// `InvalidInput` if there are descriptors but no bytes, or more than [`FDS_MAX`] descriptors.
/// EPIPE, EAGAIN, EINTR and the like as in send(2).
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
        // Cheaper for the kernel than sendmsg(2).
        return Ok(nix::sys::socket::send(socket.as_raw_fd(), bytes, flags)?);
    }
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    Ok(sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], &rights, flags, None)?)
}

/// Receives bytes into `buffer`, and their descriptors (close-on-exec) into `fds`. Closes
/// descriptors beyond [`FDS_MAX`]. 0 is the end.
///
/// # Errors
/// EAGAIN, EINTR, ECONNRESET and the like as in recvmsg(2). In that case it has received nothing.
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

/// Waits for an event, at most this long, or forever without a limit. Returns whether the time has
/// passed without an event.
///
/// # Errors
/// As in poll(2), except EINTR, after which the caller looks at everything again.
pub fn poll_within(polled: &mut [PollFd<'_>], within: Option<Duration>) -> io::Result<bool> {
    let timeout = within.map_or(PollTimeout::NONE, |within| {
        // Rounded up, because a wait of 0 ms would spin.
        PollTimeout::try_from(within.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX)
    });
    match poll(polled, timeout) {
        Ok(count) => Ok(count == 0),
        Err(Errno::EINTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Waits until one of these descriptors can be read or has ended, as [`poll_within`] waits.
///
/// # Errors
/// The same as for [`poll_within`].
pub fn wait_readable<'a>(
    fds: impl IntoIterator<Item = BorrowedFd<'a>>,
    within: Option<Duration>,
) -> io::Result<()> {
    let polled = fds.into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    poll_within(&mut polled.collect::<Vec<_>>(), within).map(drop)
}

/// The events of a descriptor at this moment: those wanted, and errors and hang-ups unasked.
pub fn events_now(fd: impl AsFd, wanted: PollFlags) -> PollFlags {
    let mut polled = [PollFd::new(fd.as_fd(), wanted)];
    let _ = poll(&mut polled, PollTimeout::ZERO);
    polled[0].revents().unwrap_or(PollFlags::empty())
}

/// Closes the descriptors that this process inherited, except these and standard error, for
/// messages. Standard input and output lead nowhere. A process that waits for the end of a pipe, or
/// for a file lock, then does not wait for this one.
pub fn keep_only(keep: &[BorrowedFd<'_>]) {
    close_except(keep);
    if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = dup2_stdin(&null);
        let _ = dup2_stdout(&null);
    }
}

/// Closes every descriptor except the standard ones and these, for a process that is about to take
/// on another task. Code that still has one of them as an [`OwnedFd`] must not use or drop it.
pub fn close_except(keep: &[BorrowedFd<'_>]) {
    let mut keep: Vec<u32> = keep.iter().map(|fd| fd.as_raw_fd().unsigned_abs()).collect();
    keep.sort_unstable();
    let mut next = 3;
    for kept in keep.into_iter().filter(|kept| *kept >= 3) {
        close_up_to(next, kept - 1);
        next = kept + 1;
    }
    close_from(next, highest_open);
}

/// Closes every descriptor from `first` on: with `close_range` (Linux 5.9) if the kernel has it and
/// allows it, otherwise one by one up to `last`. Async-signal-safe if `last` is.
pub(super) fn close_from(first: u32, last: impl FnOnce() -> u32) {
    // SAFETY: the call takes three integers. `close_except` documents the effect of closing.
    let close_range = || unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) == 0 };
    if !(allows(Feature::CLOSE_RANGE) && close_range()) {
        close_up_to(first, last());
    }
}

/// Closes from `first` to `last` inclusive, whether open or not. Async-signal-safe.
fn close_up_to(first: u32, last: u32) {
    for fd in first..=last {
        if let Ok(fd) = RawFd::try_from(fd) {
            // SAFETY: the call takes an integer. `close_except` documents the effect of closing.
            unsafe { libc::close(fd) };
        }
    }
}

/// The highest open descriptor according to /proc, or the highest possible one without /proc.
pub(super) fn highest_open() -> u32 {
    let listed = std::fs::read_dir("/proc/self/fd").ok().and_then(|entries| {
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).max()
    });
    listed.unwrap_or_else(|| {
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        // The limit can be infinite. 2^20 is the kernel's default maximum.
        u32::try_from(limit.min(1 << 20)).unwrap_or(1024)
    })
}

/// Takes over a descriptor that this process was started with under an agreed number, and makes it
/// close-on-exec. Call this once for each number, before other code can get the same number.
///
/// # Errors
/// EBADF if the descriptor is not open.
pub fn adopt(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: only fcntl uses it, and fcntl fails if it is not open.
    fcntl(unsafe { BorrowedFd::borrow_raw(number) }, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    // SAFETY: it is open, and by agreement no other code in this process knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// How many descriptors this process may have open.
///
/// # Errors
/// Those of getrlimit(2).
pub fn limit() -> io::Result<u64> {
    Ok(getrlimit(Resource::RLIMIT_NOFILE)?.0)
}

/// Raises the soft limit of open descriptors to the hard limit, and both to `at_least` if that is
/// allowed. Returns the limit in force.
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

/// A pipe with both ends close-on-exec: the read end, then the write end.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(nix::unistd::pipe2(OFlag::O_CLOEXEC)?)
}

/// Moves a descriptor to the lowest free number from `at_least` on, where the next program inherits
/// it and it does not collide with other descriptors. If the limit of open descriptors is below
/// `at_least`, the number is lower, but never 0, 1 or 2. The descriptor stays open for the life of
/// the process.
pub fn inherit(fd: OwnedFd, at_least: i32) -> io::Result<RawFd> {
    let mut at_least = at_least.max(3);
    loop {
        match fcntl(&fd, FcntlArg::F_DUPFD(at_least)) {
            // EINVAL: at or above the limit. EMFILE: no number between there and the limit is free.
            Err(Errno::EINVAL | Errno::EMFILE) if at_least > 3 => at_least = (at_least / 2).max(3),
            result => return Ok(result?),
        }
    }
}

#[cfg(test)]
mod tests;
