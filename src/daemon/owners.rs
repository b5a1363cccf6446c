//! The processes that own frames: watched through pidfds that sit in one epoll instance.
//!
//! Invariant: a frame whose owner is watched is ended in the turn in which the kernel reports the
//! end, before anything is granted in that turn.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::task::{Context, Poll};

use nix::sys::epoll::{EpollEvent, EpollFlags};

use super::poller::Poller;
use crate::core::{FrameId, ProcessId};
use crate::sys::pidfd::Pidfd;
use crate::sys::process::{Found, Identity, identity};

/// The processes that own frames.
#[derive(Debug)]
pub(super) struct Owners {
    poller: Poller,
    watched: BTreeMap<FrameId, Pidfd>,
    /// Frames of which it could not be told, after a restart, whether their process still lives.
    pub(super) unverified: BTreeSet<FrameId>,
}

impl Owners {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { poller: Poller::new()?, watched: BTreeMap::new(), unverified: BTreeSet::new() })
    }

    /// Watches the owner of a frame from now on; a frame that is watched already stays as it is.
    pub(super) fn watch(&mut self, frame: FrameId, pidfd: Pidfd) -> io::Result<()> {
        if !self.watched.contains_key(&frame) {
            self.poller.add(&pidfd, frame.0, EpollFlags::EPOLLIN)?;
            self.watched.insert(frame, pidfd);
        }
        self.unverified.remove(&frame);
        Ok(())
    }

    pub(super) fn forget(&mut self, frame: FrameId) {
        self.unverified.remove(&frame);
        if let Some(pidfd) = self.watched.remove(&frame) {
            self.poller.remove(&pidfd);
        }
    }

    pub(super) fn of(&self, frame: FrameId) -> Option<&Pidfd> {
        self.watched.get(&frame)
    }

    /// The frames whose owners are known.
    pub(super) fn frames(&self) -> Vec<FrameId> {
        self.watched.keys().chain(&self.unverified).copied().collect()
    }

    /// Watches nobody any more.
    pub(super) fn forget_all(&mut self) {
        self.frames().into_iter().for_each(|frame| self.forget(frame));
    }

    pub(super) fn len(&self) -> usize {
        self.watched.len()
    }

    pub(super) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        self.poller.poll_ready(context)
    }

    /// Forgets the owners that have ended, and returns their frames. Never waits.
    pub(super) fn take_ended(&mut self) -> Vec<FrameId> {
        let mut ended = Vec::new();
        let mut events = [EpollEvent::empty(); 64];
        loop {
            let taken = self.poller.take(&mut events);
            let before = ended.len();
            for event in &events[..taken] {
                let frame = FrameId(event.data());
                // An event alone is no proof: see `Pidfd::has_ended`.
                if self.watched.get(&frame).is_some_and(Pidfd::has_ended) {
                    self.forget(frame);
                    ended.push(frame);
                }
            }
            if taken < events.len() || ended.len() == before {
                return ended;
            }
        }
    }
}

/// Who the process of a pidfd is; `None` if it was reaped, or if nothing tells it from others.
pub(super) fn process_of(pidfd: &Pidfd) -> Option<ProcessId> {
    let Identity { pid, started, inode } = identity(pidfd)?;
    (started != 0 || inode != 0).then_some(ProcessId { pid, started, inode })
}

/// Looks for a recorded process of this boot and pid namespace.
pub(super) fn find(process: ProcessId) -> Found {
    let ProcessId { pid, started, inode } = process;
    Identity { pid, started, inode }.find()
}
