//! The builds with a jobserver, their job tokens, and the events of their FIFOs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::inotify::Inotify;

use crate::jobserver::pipes::{self, BuildEnds, Form, Pipes};
use crate::jobserver::share::{PASSED_OVER_MAX, PATIENCE, Standing};
use crate::poller::Poller;
use canal_core::{Key, Revision, Tag, Token};
use canal_sys::{clock, private_dir};

/// A build with a jobserver.
///
/// Invariant: `out` is at least the number of bytes that the processes of the build can have, apart
/// from bytes that they wrote themselves. Bytes beyond `out` are discarded.
#[derive(Debug)]
pub(crate) struct Build {
    /// The hold of the build itself.
    pub token: Token,
    pub key: Key,
    /// `None` if the FIFOs were removed while no daemon ran. The build then gets no offers, and all
    /// its tokens count as taken.
    pipes: Option<Pipes>,
    /// The number of bytes that the daemon wrote, or is about to write, and has not read back.
    out: usize,
    /// Whether one of these bytes must be written once the decision is recorded.
    pending: bool,
    /// The number of returned bytes that were read and are still counted in `out`.
    returned: usize,
    /// When the daemon made an offer that may still be untaken.
    offered: Option<Instant>,
    /// How long the daemon skips the build if it does not take the next offer.
    patience: Duration,
    /// The time until which the daemon skips the build.
    passed_over_until: Option<Instant>,
    /// The number of its latest offer among those of all builds.
    latest: u64,
    /// Whether the table refuses it a slot in this round.
    pub barred: bool,
}

impl Build {
    /// Reads the tokens that were returned, before a job takes them again from a single FIFO.
    fn take_returned(&mut self) {
        if let Some(pipes) = &self.pipes {
            self.returned += pipes.take_returned(usize::from(self.offered.is_some()));
        }
    }

    /// Counts the tokens that were taken and returned. `held` is the number of its tokens in the
    /// table.
    pub(crate) fn count(&mut self, held: usize) {
        self.barred = false;
        self.take_returned();
        let returned = std::mem::take(&mut self.returned);
        let Some(pipes) = &self.pipes else { return };
        // Counted after the read, because each returned token had been taken before.
        let untaken = pipes.untaken();
        let surplus = untaken.saturating_sub(self.out);
        let untaken = untaken - pipes.withdraw(surplus).min(untaken);
        // An offer that is not written yet cannot be taken.
        let taken = self.out.saturating_sub(untaken + usize::from(self.pending));
        if returned > 0 {
            self.set_out(self.out - returned.min(taken));
        }
        if self.offered.is_some() && untaken == 0 && !self.pending {
            (self.offered, self.passed_over_until) = (None, None);
            self.patience = PATIENCE;
        } else if untaken > 0 && self.offered.is_none() {
            // An earlier daemon made the offer.
            self.offered = Some(clock::now());
        }
        // A hold that was released by force no longer has a slot.
        self.withdraw(self.out.saturating_sub(held));
    }

    fn set_out(&mut self, out: usize) {
        self.out = out;
        if let Some(pipes) = &self.pipes
            && let Err(error) = pipes.record_out(out)
        {
            tracing::warn!(%error, "cannot write the count of a jobserver");
        }
    }

    /// Withdraws at most `most` untaken tokens. Returns whether there was one.
    pub(crate) fn withdraw(&mut self, most: usize) -> bool {
        let Some(pipes) = &self.pipes else { return false };
        let count = pipes.withdraw(most);
        if count == 0 {
            return false;
        }
        let is_empty = pipes.untaken() == 0;
        self.set_out(self.out.saturating_sub(count));
        self.offered.take_if(|_| is_empty);
        true
    }

    /// Withdraws an offer in favour of another build. The daemon then skips this build for a while,
    /// longer each time.
    pub(crate) fn lose_offer(&mut self, now: Instant) -> bool {
        let lost = self.withdraw(1);
        if lost {
            self.pass_over(now);
        }
        lost
    }

    /// Skips the build for a while, longer each time.
    pub(crate) fn pass_over(&mut self, now: Instant) {
        self.passed_over_until = Some(now + self.patience);
        self.patience = (self.patience * 2).min(PASSED_OVER_MAX);
    }

    /// Notes an offer, which [`Self::deliver`] writes.
    fn offer(&mut self, now: Instant, number: u64) {
        self.out += 1;
        self.pending = true;
        self.offered = Some(now);
        self.latest = number;
    }

    /// Writes the offer that was noted. The decision must be recorded first.
    fn deliver(&mut self) {
        if !std::mem::take(&mut self.pending) {
            return;
        }
        let Some(pipes) = &self.pipes else { return };
        // In this order, if the daemon is killed between the two calls, the slot stays held until
        // the build ends. In the other order, a slot could be held twice.
        let written = pipes.record_out(self.out).and_then(|()| pipes.offer());
        if let Err(error) = written {
            tracing::warn!(%error, "cannot offer a token");
            self.set_out(self.out.saturating_sub(1));
            self.offered = None;
        }
    }

    /// How many of `held` tokens are not out.
    pub(crate) fn spare(&self, held: usize) -> usize {
        held.saturating_sub(self.out)
    }

    /// The state of the build for comparison with others of its key. `None` if the build cannot get
    /// an offer.
    pub(crate) fn standing(&self, held: usize, now: Instant) -> Option<Standing> {
        let pipes = self.pipes.as_ref()?;
        let untaken = pipes.untaken() + usize::from(self.pending);
        let untaken_for = (untaken > 0)
            .then(|| self.offered.map_or(PATIENCE, |since| now.saturating_duration_since(since)));
        let ready_in =
            self.passed_over_until.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        Some(Standing {
            in_use: self.out.saturating_sub(untaken),
            spare: self.spare(held),
            untaken_for,
            ready_in,
            latest: self.latest,
            barred: self.barred,
        })
    }
}

/// The most events that are read at once. They only signal that something has happened.
const EVENTS_AT_ONCE: usize = 64;

/// The number of descriptors that the daemon opens for a build.
const DESCRIPTORS_EACH: usize = 3;

/// The builds with a jobserver.
#[derive(Debug)]
pub(crate) struct Jobservers {
    dir: PathBuf,
    poller: Poller,
    /// Reports each read and write of a single FIFO. `None` before the first of them.
    accesses: Option<Inotify>,
    builds: BTreeMap<Tag, Build>,
    /// Builds whose hold has ended, so that their tokens must end.
    pub ended: Vec<Tag>,
    /// The revision of the table after which slots were last divided.
    pub seen: Option<Revision>,
    /// When an untaken offer can move to another build.
    pub due: Option<Instant>,
    /// The number of offers so far.
    offers: u64,
}

/// The name of the directory in the daemon's directory.
const NAME: &str = "jobservers";

impl Jobservers {
    /// Creates the jobservers, with their FIFOs in `jobservers/` of the daemon's directory.
    pub(crate) fn new(dir: &Path) -> io::Result<Self> {
        Ok(Self {
            dir: dir.join(NAME),
            poller: Poller::new()?,
            accesses: None,
            builds: BTreeMap::new(),
            ended: Vec::new(),
            seen: None,
            due: None,
            offers: 0,
        })
    }

    /// The number of open descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        self.builds.len() * DESCRIPTORS_EACH
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.builds.is_empty() && self.ended.is_empty()
    }

    /// Begins or continues to serve a user's build. Returns the build's ends of the FIFOs.
    pub(crate) fn serve(
        &mut self,
        (token, tag, key): (Token, Tag, &Key),
        form: Form,
        uid: u32,
    ) -> io::Result<BuildEnds> {
        if !self.builds.contains_key(&tag) {
            let pipes = Pipes::make(&self.dir, tag, form, uid)?;
            self.add(token, tag, key, Some(pipes))?;
        }
        let pipes = self.builds.get(&tag).and_then(|build| build.pipes.as_ref());
        pipes.map_or_else(|| Err(io::ErrorKind::NotFound.into()), Pipes::ends)
    }

    /// Continues a build of an earlier daemon.
    pub(crate) fn take_over(&mut self, token: Token, tag: Tag, key: &Key) -> io::Result<()> {
        match Pipes::open(&self.dir, tag, false) {
            Ok(pipes) => self.add(token, tag, key, Some(pipes)),
            Err(error) => self.add(token, tag, key, None).and(Err(error)),
        }
    }

    fn add(&mut self, token: Token, tag: Tag, key: &Key, pipes: Option<Pipes>) -> io::Result<()> {
        let watched = pipes.as_ref().map_or(Ok(()), |pipes| self.watch(pipes));
        let build = Build {
            token,
            key: key.clone(),
            out: pipes.as_ref().map_or(usize::MAX, Pipes::recorded_out),
            pipes,
            pending: false,
            returned: 0,
            offered: None,
            patience: PATIENCE,
            passed_over_until: None,
            latest: 0,
            barred: false,
        };
        self.builds.insert(tag, build);
        self.seen = None;
        watched
    }

    fn watch(&mut self, pipes: &Pipes) -> io::Result<()> {
        if pipes.form() == Form::Name && self.accesses.is_none() {
            let accesses = private_dir::inotify()?;
            self.poller.add(&accesses, 0, EpollFlags::EPOLLIN | EpollFlags::EPOLLET)?;
            self.accesses = Some(accesses);
        }
        pipes.watch(&self.poller, self.accesses.as_ref())
    }

    /// The builds for which an earlier daemon left files.
    pub(crate) fn found(&self) -> BTreeSet<Tag> {
        pipes::found(&self.dir)
    }

    /// Removes the files of a build whose hold has ended. Its tokens must end, too.
    pub(crate) fn forget(&mut self, tag: Tag) {
        pipes::remove(&self.dir, tag);
        self.ended.push(tag);
    }

    /// Handles the end of a hold. If it was the hold of a build, its tokens must end, too.
    pub(crate) fn hold_ended(&mut self, token: Token) {
        let found = self.builds.iter().find(|(_, build)| build.token == token);
        let Some(tag) = found.map(|(tag, _)| *tag) else { return };
        if let Some(Build { pipes: Some(pipes), .. }) = self.builds.remove(&tag) {
            pipes.forget(&self.poller);
        }
        self.forget(tag);
    }

    /// Reads the tokens that were returned. In a single FIFO, the daemon competes for them with the
    /// jobs, and wins if it is fast.
    pub(crate) fn take_returned(&mut self) {
        self.builds.values_mut().for_each(Build::take_returned);
    }

    /// Whether a FIFO was emptied or written to since the last call.
    pub(crate) fn take_events(&mut self) -> bool {
        // epoll no longer reports what was read since.
        let mut any = self.builds.values().any(|build| build.returned > 0);
        // The kernel reports nothing more once its queue is full.
        while self.accesses.as_ref().is_some_and(|accesses| accesses.read_events().is_ok()) {
            any = true;
        }
        let mut events = [EpollEvent::empty(); EVENTS_AT_ONCE];
        loop {
            let taken = self.poller.wait(&mut events, Some(Duration::ZERO));
            any |= taken > 0;
            if taken < events.len() {
                return any;
            }
        }
    }

    /// The keys of the builds.
    pub(crate) fn keys(&self) -> BTreeSet<Key> {
        self.builds.values().map(|build| build.key.clone()).collect()
    }

    /// The builds of the keys that `is` selects.
    pub(crate) fn of_keys(&self, is: impl Fn(&Key) -> bool) -> Vec<Tag> {
        let of_keys = self.builds.iter().filter(|(_, build)| is(&build.key));
        of_keys.map(|(tag, _)| *tag).collect()
    }

    pub(crate) fn get(&self, tag: Tag) -> Option<&Build> {
        self.builds.get(&tag)
    }

    pub(crate) fn get_mut(&mut self, tag: Tag) -> Option<&mut Build> {
        self.builds.get_mut(&tag)
    }

    /// Notes an offer to a build.
    pub(crate) fn offer(&mut self, tag: Tag, now: Instant) {
        self.offers += 1;
        if let Some(build) = self.builds.get_mut(&tag) {
            build.offer(now, self.offers);
        }
    }

    /// Writes the offers that were noted. The decisions must be recorded first.
    pub(crate) fn deliver(&mut self) {
        self.builds.values_mut().for_each(Build::deliver);
    }
}

impl AsFd for Jobservers {
    /// Becomes readable when a FIFO was emptied or written to.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}
