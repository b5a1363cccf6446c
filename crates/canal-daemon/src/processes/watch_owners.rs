//! Watches the processes that own frames, and the descendants that keep holds alive. One epoll
//! instance reports their ends, through pidfds and FIFOs.
//!
//! Invariant: when the kernel reports the end of a watched owner, the daemon ends its frame in the
//! same turn, before it grants anything. The same is true of a hold whose last descendant has
//! ended.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use slotmap::{Key, KeyData, SlotMap, new_key_type};

use crate::poller::Poller;
use canal_core::{FrameId, ProcessId, Token};
use canal_sys::pidfd::Pidfd;

/// The number of processes that no longer own anything but whose pidfds are kept for a while. A
/// client that releases a lock often acquires one again soon.
const RESTING_MAX: usize = 128;

/// How often to look again for a process whose life is uncertain.
pub(crate) const VERIFIED_EVERY: Duration = Duration::from_secs(10);

new_key_type! {
    /// Identifies a watched process or FIFO. An id is never reused.
    pub struct WatchId;
}

/// The most events taken from the kernel at once.
const ENDS_AT_ONCE: usize = 64;

/// The ends that the kernel reported.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// The frames whose process has ended, with its pidfd, from which the history may learn how it
    /// ended.
    pub owners: Vec<(FrameId, Pidfd)>,
    /// The holds whose FIFO has lost its last writer.
    pub fifos: Vec<Token>,
}

/// The processes that own frames.
#[derive(Debug)]
pub(crate) struct Owners {
    poller: Poller,
    /// The key is the number in the epoll events.
    watched: SlotMap<WatchId, Watched>,
    frames: BTreeMap<FrameId, WatchId>,
    /// The processes that own nothing. The process that has rested longest comes first.
    resting: VecDeque<WatchId>,
    /// Frames whose process may or may not live: the daemon could not determine this after a
    /// restart.
    pub unverified: BTreeSet<FrameId>,
}

/// The subject of an epoll event.
#[derive(Debug)]
enum Watched {
    Process(Process),
    /// The last writer of the FIFO of a hold.
    Writers(Token),
}

/// A watched process.
#[derive(Debug)]
struct Process {
    pidfd: Pidfd,
    /// The identity of the process, if it is known.
    process: Option<ProcessId>,
    /// The frame that it owns. `None` while it rests.
    frame: Option<FrameId>,
}

impl Owners {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            poller: Poller::new()?,
            watched: SlotMap::with_key(),
            frames: BTreeMap::new(),
            resting: VecDeque::new(),
            unverified: BTreeSet::new(),
        })
    }

    /// Watches the owner of a frame from now on. A frame that is already watched stays unchanged.
    pub(crate) fn watch(
        &mut self,
        frame: FrameId,
        process: Option<ProcessId>,
        pidfd: Pidfd,
    ) -> io::Result<()> {
        if !self.frames.contains_key(&frame) {
            let id = self.watched.try_insert_with_key(|id| {
                self.poller.add(&pidfd, id.data().as_ffi(), EpollFlags::EPOLLIN)?;
                Ok::<_, io::Error>(Watched::Process(Process { pidfd, process, frame: Some(frame) }))
            })?;
            self.frames.insert(frame, id);
        }
        self.unverified.remove(&frame);
        Ok(())
    }

    /// Watches the owner of a frame without a system call, if its pidfd has been resting since the
    /// owner had another frame. Returns whether this was so.
    pub(crate) fn watch_again(&mut self, frame: FrameId, process: ProcessId) -> bool {
        // The process that released last is the most likely to ask again.
        for (at, id) in self.resting.iter().enumerate().rev() {
            if let Some(Watched::Process(watched)) = self.watched.get_mut(*id)
                && watched.process == Some(process)
            {
                watched.frame = Some(frame);
                self.frames.insert(frame, *id);
                self.resting.remove(at);
                return true;
            }
        }
        false
    }

    /// Handles the end of a frame. Its process may soon own another frame, so it rests.
    pub(crate) fn rest(&mut self, frame: FrameId) {
        self.unverified.remove(&frame);
        let Some(id) = self.frames.remove(&frame) else { return };
        match self.watched.get_mut(id) {
            Some(Watched::Process(watched)) if watched.process.is_some() => watched.frame = None,
            _ => return drop(self.take_out(id)),
        }
        self.resting.push_back(id);
        if self.resting.len() > RESTING_MAX
            && let Some(id) = self.resting.pop_front()
        {
            self.take_out(id);
        }
    }

    /// Stops watching the owner of a frame.
    pub(crate) fn forget(&mut self, frame: FrameId) {
        self.unverified.remove(&frame);
        if let Some(id) = self.frames.remove(&frame) {
            self.take_out(id);
        }
    }

    /// Stops watching the resting processes, because descriptors are scarce.
    pub(crate) fn forget_resting(&mut self) {
        for id in std::mem::take(&mut self.resting) {
            self.take_out(id);
        }
    }

    /// Stops watching a process. Returns its pidfd.
    fn take_out(&mut self, id: WatchId) -> Option<Pidfd> {
        let Some(Watched::Process(watched)) = self.watched.remove(id) else { return None };
        self.poller.remove(&watched.pidfd);
        Some(watched.pidfd)
    }

    pub(crate) fn of(&self, frame: FrameId) -> Option<&Pidfd> {
        let watched = self.watched.get(*self.frames.get(&frame)?)?;
        if let Watched::Process(watched) = watched { Some(&watched.pidfd) } else { None }
    }

    /// The frames whose owners are known.
    pub(crate) fn frames(&self) -> Vec<FrameId> {
        self.frames.keys().chain(&self.unverified).copied().collect()
    }

    /// Stops watching all processes.
    pub(crate) fn forget_all(&mut self) {
        self.frames().into_iter().for_each(|frame| self.forget(frame));
        self.forget_resting();
    }

    /// Watches the last writer of the FIFO of a hold. Data written into the FIFO is not reported.
    pub(crate) fn await_writers(&mut self, token: Token, fifo: impl AsFd) -> io::Result<WatchId> {
        self.watched.try_insert_with_key(|id| {
            self.poller.add(fifo, id.data().as_ffi(), EpollFlags::EPOLLET)?;
            Ok(Watched::Writers(token))
        })
    }

    /// Stops watching the last writer of a FIFO.
    pub(crate) fn forget_writers(&mut self, id: WatchId, read_end: impl AsFd) {
        if self.watched.remove(id).is_some() {
            self.poller.remove(read_end);
        }
    }

    /// The number of open pidfds.
    pub(crate) fn len(&self) -> usize {
        self.frames.len() + self.resting.len()
    }

    /// Returns the ends that the kernel reported, and forgets the owners that have ended. Never
    /// blocks.
    pub(crate) fn take_ended(&mut self) -> Ended {
        let mut ended = Ended::default();
        let mut events = [EpollEvent::empty(); ENDS_AT_ONCE];
        // The kernel reports in turns. After this many checks it has reported each process that has
        // ended, even if it also reported some that have not.
        let mut looks_left = self.watched.len() / ENDS_AT_ONCE + 1;
        loop {
            let taken = self.poller.wait(&mut events, Some(Duration::ZERO));
            let before = (ended.owners.len(), ended.fifos.len(), self.watched.len());
            for event in &events[..taken] {
                self.take_end(event.data(), &mut ended);
            }
            if before == (ended.owners.len(), ended.fifos.len(), self.watched.len()) {
                looks_left -= 1;
            }
            if taken < events.len() || looks_left == 0 {
                return ended;
            }
        }
    }

    fn take_end(&mut self, number: u64, ended: &mut Ended) {
        let id = WatchId::from(KeyData::from_ffi(number));
        match self.watched.get(id) {
            Some(Watched::Writers(token)) => ended.fifos.push(*token),
            // An event alone is not proof: see `Pidfd::has_ended`.
            Some(Watched::Process(process)) if process.pidfd.has_ended() => match process.frame {
                Some(frame) => {
                    self.frames.remove(&frame);
                    self.unverified.remove(&frame);
                    ended.owners.extend(self.take_out(id).map(|pidfd| (frame, pidfd)));
                }
                None => {
                    self.resting.retain(|other| *other != id);
                    self.take_out(id);
                }
            },
            _ => {}
        }
    }
}

impl AsFd for Owners {
    /// Becomes readable when a process ends.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::processes::identify_owner::process_of;

    impl Owners {
        /// Makes the next `count` attempts to watch something fail.
        pub(crate) fn fail(&self, count: u32) {
            self.poller.fail(count);
        }
    }

    /// A process that ends when its input is closed, and its identity.
    fn process() -> (Child, ProcessId) {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let id = process_of(&Pidfd::open(child.id()).unwrap()).unwrap();
        (child, id)
    }

    fn end(mut child: Child) {
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    fn with_owners(test: impl FnOnce(&mut Owners)) {
        test(&mut Owners::new().unwrap());
    }

    const ONE: FrameId = FrameId(1);
    const OTHER: FrameId = FrameId(2);

    #[test]
    fn the_end_of_an_owner_that_acquired_again_ends_its_later_frame() {
        with_owners(|owners| {
            let (child, id) = process();
            owners.watch(ONE, Some(id), Pidfd::open(child.id()).unwrap()).unwrap();
            owners.rest(ONE);
            assert!(owners.of(ONE).is_none());
            assert!(owners.watch_again(OTHER, id), "it rests");
            assert!(!owners.watch_again(OTHER, id), "it rests no more");
            assert!(owners.take_ended().owners.is_empty());
            end(child);
            assert_eq!(
                owners.take_ended().owners.iter().map(|(frame, _)| *frame).collect::<Vec<_>>(),
                [OTHER]
            );
            assert_eq!(owners.len(), 0);
        });
    }

    #[test]
    fn the_end_of_an_idle_owner_ends_no_frame() {
        with_owners(|owners| {
            let (child, id) = process();
            owners.watch(ONE, Some(id), Pidfd::open(child.id()).unwrap()).unwrap();
            owners.rest(ONE);
            end(child);
            assert!(owners.take_ended().owners.is_empty());
            assert_eq!(owners.len(), 0);
            assert!(!owners.watch_again(OTHER, id), "it is forgotten");
        });
    }

    #[test]
    fn idle_owners_are_bounded_and_dropped_when_descriptors_are_scarce() {
        with_owners(|owners| {
            let (child, id) = process();
            for n in 0..=RESTING_MAX as u64 {
                let frame = FrameId(n);
                let other = ProcessId { inode: n + 1, ..id };
                owners.watch(frame, Some(other), Pidfd::open(child.id()).unwrap()).unwrap();
                owners.rest(frame);
            }
            assert_eq!(owners.len(), RESTING_MAX);
            assert!(!owners.watch_again(ONE, ProcessId { inode: 1, ..id }), "it was the first");
            owners.watch(ONE, None, Pidfd::open(child.id()).unwrap()).unwrap();
            owners.forget_resting();
            assert_eq!(owners.len(), 1);
            end(child);
        });
    }
}
