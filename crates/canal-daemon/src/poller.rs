//! A set of descriptors in a separate epoll instance.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// The most events taken from the kernel at once.
pub(crate) const EVENTS_AT_ONCE: usize = 1024;

/// A set of descriptors, each with a number that its events carry.
#[derive(Debug)]
pub(crate) struct Poller {
    epoll: Epoll,
    /// How many of the next additions and changes fail.
    #[cfg(test)]
    fails: std::cell::Cell<u32>,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            #[cfg(test)]
            fails: Default::default(),
        })
    }

    pub(crate) fn add(&self, fd: impl AsFd, number: u64, flags: EpollFlags) -> io::Result<()> {
        #[cfg(test)]
        self.strike()?;
        Ok(self.epoll.add(fd, EpollEvent::new(flags, number))?)
    }

    pub(crate) fn change(&self, fd: impl AsFd, number: u64, flags: EpollFlags) -> io::Result<()> {
        #[cfg(test)]
        self.strike()?;
        Ok(self.epoll.modify(fd, &mut EpollEvent::new(flags, number))?)
    }

    /// Makes the next `count` additions and changes fail.
    #[cfg(test)]
    pub(crate) fn fail(&self, count: u32) {
        self.fails.set(count);
    }

    #[cfg(test)]
    fn strike(&self) -> io::Result<()> {
        match self.fails.get().checked_sub(1) {
            Some(left) => {
                self.fails.set(left);
                Err(io::ErrorKind::StorageFull.into())
            }
            None => Ok(()),
        }
    }

    /// Removes a descriptor. Closing it would not be enough if another process has a copy.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        if let Err(error) = self.epoll.delete(fd) {
            tracing::warn!(%error, "cannot remove a descriptor from its epoll instance");
        }
    }

    /// Takes the pending events. Waits for the first one; forever without a time. If the buffer is
    /// full, there may be more.
    pub(crate) fn wait(&self, events: &mut [EpollEvent], time: Option<Duration>) -> usize {
        // Rounded up. Otherwise the daemon would be awake for the last part of a millisecond.
        let milliseconds = time.map(|time| time.as_nanos().div_ceil(1_000_000));
        let timeout = milliseconds.map_or(EpollTimeout::NONE, |milliseconds| {
            EpollTimeout::try_from(milliseconds).unwrap_or(EpollTimeout::MAX)
        });
        self.epoll.wait(events, timeout).unwrap_or(0)
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}
