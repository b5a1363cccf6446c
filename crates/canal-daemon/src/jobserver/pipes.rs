//! The FIFOs of a build, and the file that counts the bytes that are out.
//!
//! There are two FIFOs, or one for both directions, which a build finds by its name. All ends are
//! open for reading and writing. So without a daemon, a build that reads waits, and a build that
//! writes is not killed by SIGPIPE.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::sys::epoll::EpollFlags;
use nix::sys::inotify::{AddWatchFlags, Inotify};
use nix::sys::stat::Mode;
use nix::unistd::write;
use rustix::io::{read, retry_on_intr};

use crate::poller::Poller;
use canal_core::Tag;
use canal_sys::private_dir::{if_there, make_fifo, remove_if_there};

/// The byte that represents a token, as in GNU make.
const TOKEN: &[u8] = b"+";

/// The most bytes that are read at once. The next turn reads the rest.
const BYTES_AT_ONCE: usize = 4096;

/// The capacity of the FIFO of offers: one page. Linux then reports it writable only while it is
/// empty, and so wakes the daemon when a job takes a byte.
const OFFERS_BYTES: i32 = 4096;

/// The capacity of a single FIFO: two pages. In one page, a write would block after 4096 bytes even
/// if all but one were read.
const SINGLE_BYTES: i32 = 2 * OFFERS_BYTES;

/// The endings of the names of the files.
const ENDINGS: [&str; 3] = ["offers", "returns", "out"];

/// How the programs of a build find their jobserver.
///
/// Only a name survives programs that close descriptors, and only a single FIFO can be named. Its
/// price: a make may take its own token back before the daemon can give the slot to a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// By two descriptors, one for each FIFO.
    Descriptors,
    /// By the name of a single FIFO.
    Name,
}

/// The FIFOs of a build.
#[derive(Debug)]
pub(crate) struct Pipes {
    dir: PathBuf,
    tag: Tag,
    /// The daemon writes tokens; jobs take them.
    offers: OwnedFd,
    /// Jobs write tokens back. `None` if they write them back to `offers`.
    returns: Option<OwnedFd>,
    /// The number of bytes that are out: written by the daemon and not read back. It outlives the
    /// daemon.
    count: File,
}

/// The ends for a build: one to read tokens, and one to write them back.
#[derive(Debug)]
pub(crate) struct BuildEnds {
    pub offers: OwnedFd,
    pub returns: OwnedFd,
    /// The path of the single FIFO.
    pub path: Option<PathBuf>,
}

fn path(dir: &Path, tag: Tag, ending: &str) -> PathBuf {
    dir.join(format!("{tag}.{ending}"))
}

fn open_fifo(path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
    let flags = flags | OFlag::O_RDWR | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    Ok(open(path, flags, Mode::empty())?)
}

/// The builds that have files.
pub(crate) fn found(dir: &Path) -> BTreeSet<Tag> {
    let Ok(entries) = std::fs::read_dir(dir) else { return BTreeSet::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let tags = names.filter_map(|name| name.split_once('.')?.0.parse().ok());
    tags.collect()
}

/// Removes the files of a build.
pub(crate) fn remove(dir: &Path, tag: Tag) {
    for ending in ENDINGS {
        let path = path(dir, tag, ending);
        if let Err(error) = remove_if_there(&path) {
            tracing::warn!(path = %path.display(), %error, "cannot remove a jobserver file");
        }
    }
}

impl Pipes {
    /// Creates the files of a user's build, or uses the existing ones.
    pub(crate) fn make(dir: &Path, tag: Tag, form: Form, uid: u32) -> io::Result<Self> {
        for ending in &ENDINGS[..if form == Form::Name { 1 } else { 2 }] {
            make_fifo(&path(dir, tag, ending))?;
        }
        if form == Form::Name {
            std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o711))?;
            // Only root can give it away. The client of another user falls back to descriptors.
            let _ = std::os::unix::fs::lchown(path(dir, tag, ENDINGS[0]), Some(uid), None);
        }
        Self::open(dir, tag, true)
    }

    /// Opens the files. Without `creates_count`, an earlier daemon must have created the count.
    pub(crate) fn open(dir: &Path, tag: Tag, creates_count: bool) -> io::Result<Self> {
        let offers = open_fifo(&path(dir, tag, ENDINGS[0]), OFlag::O_NONBLOCK)?;
        let returns = if_there(open_fifo(&path(dir, tag, ENDINGS[1]), OFlag::O_NONBLOCK))?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(creates_count).truncate(false).mode(0o600);
        let count = options.custom_flags(libc::O_NOFOLLOW).open(path(dir, tag, ENDINGS[2]))?;
        let capacity = if returns.is_some() { OFFERS_BYTES } else { SINGLE_BYTES };
        fcntl(&offers, FcntlArg::F_SETPIPE_SZ(capacity))?;
        Ok(Self { dir: dir.to_owned(), tag, offers, returns, count })
    }

    /// Opens the ends for the build with separate file descriptions, so that a flag that the build
    /// sets (`O_NONBLOCK`) does not affect the daemon's ends.
    pub(crate) fn ends(&self) -> io::Result<BuildEnds> {
        let open = |ending| open_fifo(&path(&self.dir, self.tag, ending), OFlag::empty());
        let (returns, single) = match self.form() {
            Form::Descriptors => (ENDINGS[1], None),
            Form::Name => (ENDINGS[0], Some(path(&self.dir, self.tag, ENDINGS[0]))),
        };
        Ok(BuildEnds { offers: open(ENDINGS[0])?, returns: open(returns)?, path: single })
    }

    pub(crate) fn form(&self) -> Form {
        if self.returns.is_some() { Form::Descriptors } else { Form::Name }
    }

    /// Makes the poller report, once each, that the offers are empty and that a token was returned.
    /// For a single FIFO, `accesses` reports both, because epoll does not report that a byte was
    /// read from a pipe that was not full.
    pub(crate) fn watch(&self, poller: &Poller, accesses: Option<&Inotify>) -> io::Result<()> {
        let Some(returns) = &self.returns else {
            let flags = AddWatchFlags::IN_ACCESS | AddWatchFlags::IN_MODIFY;
            let fifo = path(&self.dir, self.tag, ENDINGS[0]);
            accesses.ok_or(io::ErrorKind::Unsupported)?.add_watch(&fifo, flags)?;
            return Ok(());
        };
        poller.add(&self.offers, 0, EpollFlags::EPOLLOUT | EpollFlags::EPOLLET)?;
        poller.add(returns, 0, EpollFlags::EPOLLIN | EpollFlags::EPOLLET)
    }

    /// Stops the reports. The kernel forgets a single FIFO when it is removed.
    pub(crate) fn forget(&self, poller: &Poller) {
        if let Some(returns) = &self.returns {
            poller.remove(&self.offers);
            poller.remove(returns);
        }
    }

    /// The number of bytes that are out, from the file. 0 if it is empty.
    pub(crate) fn recorded_out(&self) -> usize {
        let mut bytes = [0; 8];
        let read = self.count.read_exact_at(&mut bytes, 0);
        read.map_or(0, |()| usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX))
    }

    /// Records how many bytes are out. The file survives the end of the daemon, but not a crash of
    /// the machine.
    pub(crate) fn record_out(&self, out: usize) -> io::Result<()> {
        self.count.write_all_at(&(out as u64).to_le_bytes(), 0)
    }

    /// Writes one token.
    pub(crate) fn offer(&self) -> io::Result<()> {
        write(&self.offers, TOKEN)?;
        Ok(())
    }

    /// The number of untaken tokens.
    pub(crate) fn untaken(&self) -> usize {
        let unread = rustix::io::ioctl_fionread(&self.offers).unwrap_or(0);
        usize::try_from(unread).unwrap_or(usize::MAX)
    }

    /// Withdraws at most `most` untaken tokens. Returns how many there were.
    pub(crate) fn withdraw(&self, most: usize) -> usize {
        take(&self.offers, most)
    }

    /// Takes the returned tokens. Returns how many there were. A single FIFO may also contain
    /// `offered` tokens that no job has taken; these stay.
    pub(crate) fn take_returned(&self, offered: usize) -> usize {
        match &self.returns {
            Some(returns) => take(returns, BYTES_AT_ONCE),
            None => self.withdraw(self.untaken().saturating_sub(offered)),
        }
    }
}

/// Reads and discards at most `most` bytes. Returns how many there were.
fn take(fifo: &OwnedFd, most: usize) -> usize {
    let mut buffer = [0; BYTES_AT_ONCE];
    let most = most.min(BYTES_AT_ONCE);
    if most == 0 {
        return 0;
    }
    retry_on_intr(|| read(fifo, &mut buffer[..most])).unwrap_or(0)
}
