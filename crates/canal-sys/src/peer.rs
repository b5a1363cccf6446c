//! Identifies the process at the other end of a Unix socket, as the kernel reports it.
//!
//! Takes nothing from a message: a peer cannot choose the result.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::{SysconfVar, sysconf};

use super::clock;
use super::kernel::{Feature, allows};
use super::pidfd::{Pidfd, is_gone};
use super::process;

/// Credentials at the time of connect(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The pid of the process. 0 if it has none in our pid namespace.
    pub pid: u32,
    /// Its effective user, as our user namespace sees it.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// `SO_PEERCRED`.
pub fn credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    simulated!(|kernel| kernel.peer(socket));
    let found = getsockopt(&socket, sockopt::PeerCredentials)?;
    let pid = u32::try_from(found.pid()).unwrap_or(0);
    Ok(Credentials { pid, uid: found.uid(), gid: found.gid() })
}

/// The peer's supplementary groups at the time of connect(2), as our user namespace sees them:
/// `SO_PEERGROUPS` (Linux 4.13). They need not include its effective group.
///
/// # Errors
/// The kernel's error, such as ENODATA for a socket without a peer process.
pub fn groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    simulated!(|_| Ok(Vec::new()));
    let mut groups: Vec<libc::gid_t> = vec![0; GROUPS_MAX];
    let room = size_of_val(groups.as_slice());
    let mut bytes = libc::socklen_t::try_from(room).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `bytes` bytes of integers into the vector, which has that
    // many, and stores their number in `bytes`. Both outlive the call.
    let told = unsafe {
        let (socket, to) = (socket.as_raw_fd(), groups.as_mut_ptr().cast());
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERGROUPS, to, &raw mut bytes)
    };
    Errno::result(told)?;
    groups.truncate(bytes as usize / size_of::<libc::gid_t>());
    Ok(groups)
}

/// The kernel's limit (`NGROUPS_MAX`). Memory that it does not write costs nothing.
const GROUPS_MAX: usize = 65_536;

/// The process at the other end. Uses `SO_PEERPIDFD` (Linux 6.5), which also works after the
/// process has died. Older kernels use `SO_PEERCRED` and pidfd_open, with a check that the pid was
/// not reused: `accepted_ticks` is the time (clock ticks since boot) at which the daemon accepted
/// the connection, and a process that started later is another process. `None` means that the peer
/// is gone.
///
/// # Errors
/// `Unsupported` if the kernel is older than 6.5 and the peer has no pid in our pid namespace.
/// Otherwise the kernel's error, such as EMFILE.
pub fn pidfd(socket: BorrowedFd<'_>, accepted_ticks: u64) -> io::Result<Option<Pidfd>> {
    simulated!(|kernel| Ok(kernel.peer_pidfd(socket)?.map(Pidfd)));
    if allows(Feature::PEER_PIDFD) {
        match by_peer_pidfd(socket) {
            // Old kernels lack it, and a filter of system calls may forbid it.
            Err(Errno::ENOPROTOOPT | Errno::EPERM | Errno::EACCES | Errno::ENOSYS) => {}
            Err(error) => return Err(error.into()),
            Ok(found) => return Ok(found.map(Pidfd)),
        }
    }
    by_number(credentials(socket)?.pid, accepted_ticks)
}

/// Whether this kernel has `SO_PEERPIDFD` (Linux 6.5). Tries it on a pair of sockets.
pub fn has_peer_pidfd() -> bool {
    let tried = || by_peer_pidfd(UnixStream::pair().ok()?.0.as_fd()).ok();
    allows(Feature::PEER_PIDFD) && tried().is_some()
}

/// The current time in clock ticks since boot, the unit of a process's start time.
pub fn ticks_now() -> u64 {
    let hertz = sysconf(SysconfVar::CLK_TCK).ok().flatten();
    let hertz = hertz.and_then(|hertz| u64::try_from(hertz).ok()).filter(|&hertz| hertz > 0);
    // The kernel truncates in the same way (nsec_to_clock_t).
    clock::boottime_ns() / (1_000_000_000 / hertz.unwrap_or(100))
}

fn by_peer_pidfd(socket: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno> {
    match getsockopt(&socket, sockopt::PeerPidfd) {
        Ok(fd) => Ok(Some(fd)),
        // Linux before 6.16 returns EINVAL for a reaped peer (ESRCH was tried and reverted).
        // ENODATA means a socket without a peer process.
        Err(Errno::EINVAL | Errno::ESRCH | Errno::ENODATA) => Ok(None),
        Err(error) => Err(error),
    }
}

fn by_number(pid: u32, accepted_ticks: u64) -> io::Result<Option<Pidfd>> {
    if pid == 0 {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the peer is in another pid namespace, and this kernel has no SO_PEERPIDFD (Linux 6.5)",
        ));
    }
    let pidfd = match Pidfd::open(pid) {
        Ok(pidfd) => pidfd,
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some(started) = process::started(pid) else { return Ok(None) };
    // The kernel does not reuse the pid before the process of the pidfd is reaped. So the start
    // time that was just read belongs to this process.
    if started > accepted_ticks || pidfd.pid() != Some(pid) {
        return Ok(None);
    }
    Ok(Some(pidfd))
}

#[cfg(test)]
mod tests;
