//! A set of descriptors in an epoll instance of its own, which the runtime sees as one descriptor.

use std::io;
use std::os::fd::AsFd;
use std::task::{Context, Poll};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::sys::readable::Readable;

/// How many events are taken from the kernel at once.
pub(super) const EVENTS_AT_ONCE: usize = 1024;

/// A set of descriptors, each with a number that its events carry.
#[derive(Debug)]
pub(super) struct Poller {
    epoll: Epoll,
    readable: Readable,
}

impl Poller {
    /// An empty set. Called within the runtime.
    pub(super) fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let readable = Readable::new(epoll.0.try_clone()?)?;
        Ok(Self { epoll, readable })
    }

    pub(super) fn add(&self, fd: impl AsFd, number: u64, flags: EpollFlags) -> io::Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(flags, number))?)
    }

    pub(super) fn change(&self, fd: impl AsFd, number: u64, flags: EpollFlags) -> io::Result<()> {
        Ok(self.epoll.modify(fd, &mut EpollEvent::new(flags, number))?)
    }

    /// Takes a descriptor out. Closing it would not do if somebody else has a copy.
    pub(super) fn remove(&self, fd: impl AsFd) {
        if let Err(error) = self.epoll.delete(fd) {
            tracing::warn!(%error, "a descriptor could not be taken out of its epoll instance");
        }
    }

    /// Ready when there may be an event.
    pub(super) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        self.readable.poll(context)
    }

    /// Takes the events that there are, without waiting; a full buffer means that there may be
    /// more.
    pub(super) fn take(&self, events: &mut [EpollEvent]) -> usize {
        let taken = self.epoll.wait(events, EpollTimeout::ZERO).unwrap_or(0);
        if taken < events.len() {
            // The runtime looks at the instance again only if it is told that nothing is left.
            let nothing = || -> io::Result<()> { Err(io::ErrorKind::WouldBlock.into()) };
            let _ = self.readable.attempt(nothing);
        }
        taken
    }
}
