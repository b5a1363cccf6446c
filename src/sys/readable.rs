//! Descriptors that the async runtime watches.

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor that the runtime watches for being readable. It is not read through this, and
/// nobody gets at it: whoever reads keeps another descriptor of the same open file.
#[derive(Debug)]
pub struct Readable(AsyncFd<OwnedFd>);

impl Readable {
    /// Has it watched from now on. Called within a runtime.
    ///
    /// # Errors
    /// What epoll_ctl(2) says, such as EPERM for a plain file.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: the descriptor is owned by what is made here, which neither gives it out nor
        // exchanges it, so that it stays open, and the same, until it is deregistered.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        Ok(Self(fd?))
    }

    /// Ready once there may be something to read, until [`Self::attempt`] finds nothing.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        self.0.poll_read_ready(context).map(drop)
    }

    /// Reads by `read` if the kernel said that there is something. If it finds nothing, which it
    /// says by `WouldBlock`, the kernel is asked again before this is ready the next time.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing, else what `read` says.
    pub fn attempt<R>(&self, read: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        self.0.try_io(Interest::READABLE, |_| read())
    }
}
