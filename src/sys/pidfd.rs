//! Process descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::signal::Signal;

/// A descriptor that names one process for good (Linux 5.3).
#[derive(Debug)]
pub struct Pidfd(OwnedFd);

impl Pidfd {
    /// Opens the process that has this number now. ESRCH, and EINVAL of a dying one, mean gone.
    pub fn open(pid: u32) -> io::Result<Self> {
        let _ = pid;
        todo!()
    }

    /// Takes over a descriptor that somebody sent; fails if it is no pidfd.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let _ = fd;
        todo!()
    }

    /// Whether the whole process has ended (zombies have). Never blocks. An end counts only if a
    /// second poll confirms it: a raw poll can lie while a non-leader thread executes.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        todo!()
    }

    /// Waits until the process has ended, at most `timeout_ms`; whether it has.
    pub fn wait_end(&self, timeout_ms: u16) -> bool {
        let _ = timeout_ms;
        todo!()
    }

    /// Sends a signal (`pidfd_send_signal`, Linux 5.1).
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let _ = signal;
        todo!()
    }

    /// The process's number in our pid namespace: 0 if it has none here, `None` if it was reaped.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        todo!()
    }

    /// The inode that names the process within this boot; 0 where the kernel has no pidfs.
    #[must_use]
    pub fn inode(&self) -> u64 {
        todo!()
    }
}

impl AsFd for Pidfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
