//! The deadline page: memory that the daemon shares with supervisors. A daemon with an engine
//! creates a page for each incarnation ([`Writer`]) with the time until which its holds are safe,
//! and moves that time at each renewal. Supervisors read it ([`Reader`]), even when the daemon is
//! stopped or gone. All times are milliseconds of CLOCK_BOOTTIME, which is the same for all
//! processes in a time namespace.
//!
//! Invariant: a page that reports a loss reports it forever.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl, open};
use nix::poll::PollFlags;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::stat::{Mode, fstat, stat};
use nix::unistd::ftruncate;

use crate::{clock, fds};

/// The time until which holds are safe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline {
    /// When the engine was last known to be reachable: just before the daemon sent the last renewal
    /// that was answered.
    pub reached_at: u64,
    /// From this time on, canal asks commands to end (TERM) and starts none.
    pub term_at: u64,
    /// From this time on, canal kills commands.
    pub kill_at: u64,
}

/// The loss of an incarnation's holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The reason.
    pub why: Why,
    /// When the daemon noticed the loss.
    pub at: u64,
}

/// Why an incarnation has lost its holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Why {
    /// The engine was unreachable for too long.
    Away = 1,
    /// Another host declared the incarnation gone.
    Gone = 2,
    /// The engine's history differs from the history that the daemon read (a fail-over, a restored
    /// backup).
    Rewritten = 3,
    /// Another process writes under the incarnation's name.
    Taken = 4,
    /// Any other reason, including those of later versions.
    Other = 5,
    /// For a request over nodes: too few nodes hold the lock.
    Fewer = 6,
}

impl Why {
    /// The reasons except [`Self::Other`].
    const KNOWN: [Self; 5] = [Self::Away, Self::Gone, Self::Rewritten, Self::Taken, Self::Fewer];

    /// The word for the reason in messages.
    pub fn word(self) -> &'static str {
        match self {
            Self::Away => "away",
            Self::Gone => "gone",
            Self::Rewritten => "rewritten",
            Self::Taken => "taken",
            Self::Other => "other",
            Self::Fewer => "fewer",
        }
    }

    /// The reason for a word.
    pub fn of_word(word: &str) -> Self {
        Self::KNOWN.into_iter().find(|why| why.word() == word).unwrap_or(Self::Other)
    }

    /// The deadline whose number is in the shared page.
    pub fn from_number(number: u64) -> Self {
        Self::KNOWN.into_iter().find(|why| *why as u64 == number).unwrap_or(Self::Other)
    }
}

/// The content of a page at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The time until which the holds are safe.
    pub deadline: Deadline,
    /// Set once the holds are lost.
    pub lost: Option<Lost>,
}

impl State {
    /// Whether it is too late to start a command at `now`.
    pub fn is_over(&self, now: u64) -> bool {
        self.lost.is_some() || now >= self.deadline.term_at
    }
}

/// `canalTTL`. A machine with the other byte order reads a different number.
const MAGIC: u64 = u64::from_be_bytes(*b"canalTTL");

/// The version of the layout. New fields are only appended. A change that an older reader would
/// misread gets a new version.
const VERSION: u64 = 1;

/// The size of the file: one page on the machines with the smallest pages.
const BYTES: usize = 4096;

/// The maximum length of a name, in bytes. Longer names are cut.
const NAME_BYTES: usize = 256;

/// The page. Each field that changes after its creation is one word.
#[repr(C)]
struct Layout {
    magic: AtomicU64,
    version: AtomicU64,
    host: AtomicU64,
    reached_at: AtomicU64,
    term_at: AtomicU64,
    kill_at: AtomicU64,
    /// 0, or the time in the upper 56 bits and the reason in the lower 8.
    lost: AtomicU64,
    /// The inode of the writer's time namespace, on which CLOCK_BOOTTIME depends.
    time_namespace: AtomicU64,
    engine: [AtomicU8; NAME_BYTES],
    label: [AtomicU8; NAME_BYTES],
}

const _: () = assert!(size_of::<Layout>() <= BYTES);

impl Layout {
    fn state(&self) -> State {
        // Only relaxed loads: other loads are not allowed on read-only memory.
        let lost = self.lost.load(Ordering::Relaxed);
        let term_at = self.term_at.load(Ordering::Relaxed);
        // Pairs with the fence in `publish`: the `kill_at` below is at least as new as the
        // `term_at` above.
        fence(Ordering::Acquire);
        let kill_at = self.kill_at.load(Ordering::Relaxed);
        let reached_at = self.reached_at.load(Ordering::Relaxed);
        let lost = (lost != 0).then(|| Lost { why: Why::from_number(lost & 0xff), at: lost >> 8 });
        State { deadline: Deadline { reached_at, term_at, kill_at }, lost }
    }

    /// A writer that is killed midway leaves the earlier `term_at` with the later `kill_at`. Both
    /// were valid deadlines.
    fn publish(&self, deadline: Deadline) {
        self.reached_at.store(deadline.reached_at, Ordering::Relaxed);
        self.kill_at.store(deadline.kill_at, Ordering::Relaxed);
        fence(Ordering::Release);
        self.term_at.store(deadline.term_at, Ordering::Relaxed);
    }
}

/// The inode of this process's time namespace. 0 if the kernel has none (before Linux 5.6).
fn time_namespace() -> u64 {
    stat("/proc/self/ns/time").map_or(0, |stat| stat.st_ino)
}

fn write_name(to: &[AtomicU8; NAME_BYTES], name: &str) {
    for (to, byte) in to.iter().zip(canal_text::beginning(name, NAME_BYTES).bytes()) {
        to.store(byte, Ordering::Relaxed);
    }
}

fn read_name(from: &[AtomicU8; NAME_BYTES]) -> String {
    let bytes = from.iter().map(|byte| byte.load(Ordering::Relaxed));
    let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A page that is mapped into this process. Dropping it unmaps the page.
#[derive(Debug)]
struct Mapping(NonNull<Layout>);

// SAFETY: the memory is only ever accessed through atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a page shared. The file must have [`BYTES`] and be sealed against shrinking, so that no
    /// access can be beyond its end.
    fn new(file: BorrowedFd<'_>, access: ProtFlags) -> io::Result<Self> {
        let length = NonZeroUsize::MIN.saturating_add(BYTES - 1);
        // SAFETY: the kernel chooses an address where nothing else is mapped.
        let address = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, file, 0) }?;
        Ok(Self(address.cast()))
    }

    fn page(&self) -> &Layout {
        // SAFETY: the mapping is aligned to a page, is as large as the file, and lives as long as
        // `self`. The file cannot shrink. Any bytes are a valid `Layout`, and other processes
        // change it only by atomics or by system calls.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped it with this length, and no reference outlives `self`.
        let _ = unsafe { munmap(self.0.cast(), BYTES) };
    }
}

/// The page of one incarnation, for writing. Dropping it shows its readers that the writer is gone;
/// the content of the page stays.
#[derive(Debug)]
pub struct Writer {
    /// The page as its readers see it, but with a mapping that can be written. Its liveness pipe
    /// reaches its end when we close `line_kept`, or when the kernel closes it at the end of this
    /// process.
    pub reader: Reader,
    line_kept: Option<OwnedFd>,
}

impl Writer {
    /// Creates a page (memfd_create, Linux 3.17; F_SEAL_FUTURE_WRITE, Linux 5.1). `host` is the
    /// incarnation. `engine` and `label` are the names of the engine and of this host in messages.
    ///
    /// # Errors
    /// No descriptors or memory are left.
    pub fn create(host: u64, engine: &str, label: &str, deadline: Deadline) -> io::Result<Self> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create("canal-deadline", flags)?;
        ftruncate(&file, i64::try_from(BYTES).unwrap_or(i64::MAX))?;
        let mapping = Mapping::new(file.as_fd(), ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)?;
        // This mapping stays writable; no other process can write the page.
        let seals = SealFlag::F_SEAL_SHRINK
            | SealFlag::F_SEAL_GROW
            | SealFlag::F_SEAL_FUTURE_WRITE
            | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        let page = mapping.page();
        write_name(&page.engine, engine);
        write_name(&page.label, label);
        page.host.store(host, Ordering::Relaxed);
        page.time_namespace.store(time_namespace(), Ordering::Relaxed);
        page.publish(deadline);
        page.version.store(VERSION, Ordering::Relaxed);
        page.magic.store(MAGIC, Ordering::Relaxed);
        let (line, line_kept) = fds::pipe()?;
        // The seals already keep other processes from writing; a read-only descriptor is a second
        // barrier. Without /proc, only the seals protect the page.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let opened = open(path.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty());
        let reader = Reader { mapping, page: opened.unwrap_or(file), line };
        Ok(Self { reader, line_kept: Some(line_kept) })
    }

    /// Moves the deadline. After [`Self::lost`] readers ignore it.
    pub fn publish(&self, deadline: Deadline) {
        self.reader.mapping.page().publish(deadline);
    }

    /// Reports to all readers at once that the incarnation's holds are lost. The daemon calls this
    /// before it acts on the loss, so that the supervisor of a command that it ends can find out
    /// why.
    pub fn lost(&mut self, why: Why) {
        let word = clock::boottime_ms() << 8 | u64::from(why as u8);
        // Only the first loss is recorded.
        let lost = &self.reader.mapping.page().lost;
        let _ = lost.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed);
        self.line_kept = None;
    }

    /// All descriptors that a forked process must keep open when it closes the others.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.reader.descriptors().into_iter().chain(self.line_kept.as_ref().map(AsFd::as_fd))
    }
}

/// The page of an incarnation, for reading: the side of the supervisor that runs a command.
#[derive(Debug)]
pub struct Reader {
    mapping: Mapping,
    /// A read-only descriptor.
    page: OwnedFd,
    line: OwnedFd,
}

impl Reader {
    /// Takes over the two descriptors that came with a grant.
    ///
    /// # Errors
    /// `InvalidData` if the file is not a deadline page, could shrink under its reader, or belongs
    /// to another time namespace.
    pub fn open(page: OwnedFd, line: OwnedFd) -> io::Result<Self> {
        let ensure = |is_right: bool, text| match is_right {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::InvalidData, text)),
        };
        let sealed = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        // Only a memfd has seals; other files return EINVAL.
        let seals = fcntl(&page, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_retain);
        ensure(seals.is_ok_and(|seals| seals.contains(sealed)), "the deadline page is not sealed")?;
        let size = usize::try_from(fstat(&page)?.st_size);
        ensure(size == Ok(BYTES), "the deadline page has a different size")?;
        let mapping = Mapping::new(page.as_fd(), ProtFlags::PROT_READ)?;
        let Layout { magic, version, time_namespace: of_writer, .. } = mapping.page();
        let is = |number: &AtomicU64, expected| number.load(Ordering::Relaxed) == expected;
        ensure(is(magic, MAGIC), "the file is not a deadline page")?;
        ensure(is(version, VERSION), "the deadline page has another version")?;
        ensure(
            is(of_writer, time_namespace()),
            "the daemon is in another time namespace, so its deadlines are not valid here",
        )?;
        Ok(Self { mapping, page, line })
    }

    /// The current content.
    pub fn state(&self) -> State {
        self.mapping.page().state()
    }

    /// The id of the incarnation.
    pub fn host(&self) -> u64 {
        self.mapping.page().host.load(Ordering::Relaxed)
    }

    /// The name of the engine in messages.
    pub fn engine(&self) -> String {
        read_name(&self.mapping.page().engine)
    }

    /// The name of the host in messages.
    pub fn label(&self) -> String {
        read_name(&self.mapping.page().label)
    }

    /// Whether the page no longer changes: the incarnation is lost, or its daemon has ended.
    pub fn is_left(&self) -> bool {
        !fds::events_now(&self.line, PollFlags::POLLIN).is_empty()
    }

    /// The liveness pipe, to poll for its end.
    pub fn line(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }

    /// The descriptors to pass on: the page (`deadline_fd` of a grant), which can only be read,
    /// then the liveness pipe (`liveness_fd`).
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.page.as_fd(), self.line.as_fd()]
    }
}

#[cfg(test)]
mod tests;
