//! The builds with a jobserver, and the events of their FIFOs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::inotify::{InitFlags, Inotify};

use crate::jobserver::build::Build;
use crate::jobserver::pipes::{self, BuildEnds, Form, Pipes};
use crate::poller::Poller;
use canal_core::{Key, Revision, Tag, Token};

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
    ended: Vec<Tag>,
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
        self.builds.get(&tag).map_or_else(|| Err(io::ErrorKind::NotFound.into()), Build::ends)
    }

    /// Continues a build of an earlier daemon.
    pub(crate) fn take_over(&mut self, token: Token, tag: Tag, key: &Key) -> io::Result<()> {
        let opened = Pipes::take_over(&self.dir, tag);
        let failed = opened.as_ref().err().map(ToString::to_string);
        self.add(token, tag, key, opened.ok())?;
        failed.map_or(Ok(()), |error| Err(io::Error::other(error)))
    }

    fn add(&mut self, token: Token, tag: Tag, key: &Key, pipes: Option<Pipes>) -> io::Result<()> {
        let watched = pipes.as_ref().map_or(Ok(()), |pipes| self.watch(pipes));
        self.builds.insert(tag, Build::new(token, key.clone(), pipes));
        self.seen = None;
        watched
    }

    fn watch(&mut self, pipes: &Pipes) -> io::Result<()> {
        if pipes.form() == Form::Name && self.accesses.is_none() {
            let accesses = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
            self.poller.add(&accesses, 0, EpollFlags::EPOLLIN | EpollFlags::EPOLLET)?;
            self.accesses = Some(accesses);
        }
        pipes.watch(&self.poller, self.accesses.as_ref())
    }

    /// The builds for which an earlier daemon left files.
    pub(crate) fn found(&self) -> Vec<Tag> {
        pipes::found(&self.dir)
    }

    pub(crate) fn sweep(&self, tag: Tag) {
        pipes::remove(&self.dir, tag);
    }

    /// Handles the end of a hold. If it was the hold of a build, its tokens must end, too.
    pub(crate) fn hold_ended(&mut self, token: Token) {
        let found = self.builds.iter().find(|(_, build)| build.token == token);
        let Some(tag) = found.map(|(tag, _)| *tag) else { return };
        if let Some(Build { pipes: Some(pipes), .. }) = self.builds.remove(&tag) {
            pipes.forget(&self.poller);
        }
        pipes::remove(&self.dir, tag);
        self.ended.push(tag);
    }

    /// The builds whose tokens must end.
    pub(crate) fn take_ended(&mut self) -> Vec<Tag> {
        std::mem::take(&mut self.ended)
    }

    /// Reads the tokens that were returned. In a single FIFO, the daemon competes for them with the
    /// jobs, and wins if it is fast.
    pub(crate) fn take_returned(&mut self) {
        self.builds.values_mut().for_each(Build::take_returned);
    }

    /// Whether a FIFO was emptied or written to since the last call.
    pub(crate) fn take_events(&mut self) -> bool {
        // epoll no longer reports what was read since.
        let mut any = self.builds.values().any(Build::has_returned);
        // The kernel reports nothing more once its queue is full.
        while self.accesses.as_ref().is_some_and(|accesses| accesses.read_events().is_ok()) {
            any = true;
        }
        let mut events = [EpollEvent::empty(); EVENTS_AT_ONCE];
        loop {
            let taken = self.poller.take(&mut events);
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

    /// The builds of a key.
    pub(crate) fn of_key(&self, key: &Key) -> Vec<Tag> {
        let of_key = self.builds.iter().filter(|(_, build)| build.key == *key);
        of_key.map(|(tag, _)| *tag).collect()
    }

    /// The builds of a key, of the keys above it and of the keys below it.
    pub(crate) fn around(&self, key: &Key) -> Vec<Tag> {
        let is_around = |build: &Build| build.key.covers(key) || key.covers(&build.key);
        let around = self.builds.iter().filter(|(_, build)| is_around(build));
        around.map(|(tag, _)| *tag).collect()
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
