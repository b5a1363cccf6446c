//! The layout of a page in memory.

use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use std::{fmt, io};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::stat::stat;

use super::{Deadline, Lost, State, Why};

/// `canalTTL`. A machine with the other byte order reads a different number.
pub(super) const MAGIC: u64 = u64::from_be_bytes(*b"canalTTL");

/// The version of the layout. New fields are only appended. A change that an older reader would
/// misread gets a new version.
pub(super) const VERSION: u64 = 1;

/// The size of the file: one page on the machines with the smallest pages.
pub(super) const BYTES: usize = 4096;

/// The maximum length of a name, in bytes. Longer names are cut.
pub(super) const NAME_BYTES: usize = 256;

/// The page. Each field that changes after its creation is one word.
#[repr(C)]
pub(super) struct Layout {
    pub(super) magic: AtomicU64,
    pub(super) version: AtomicU64,
    pub(super) host: AtomicU64,
    reached_at: AtomicU64,
    term_at: AtomicU64,
    kill_at: AtomicU64,
    /// 0, or the time in the upper 56 bits and the reason in the lower 8.
    lost: AtomicU64,
    /// The inode of the writer's time namespace, on which CLOCK_BOOTTIME depends.
    pub(super) time_namespace: AtomicU64,
    pub(super) engine: [AtomicU8; NAME_BYTES],
    pub(super) label: [AtomicU8; NAME_BYTES],
}

const _: () = assert!(size_of::<Layout>() <= BYTES);

impl Layout {
    pub(super) fn state(&self) -> State {
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
    pub(super) fn publish(&self, deadline: Deadline) {
        self.reached_at.store(deadline.reached_at, Ordering::Relaxed);
        self.kill_at.store(deadline.kill_at, Ordering::Relaxed);
        fence(Ordering::Release);
        self.term_at.store(deadline.term_at, Ordering::Relaxed);
    }

    /// Only the first loss is recorded.
    pub(super) fn lose(&self, lost: Lost) {
        let word = lost.at << 8 | u64::from(lost.why as u8);
        let _ = self.lost.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The inode of this process's time namespace. 0 if the kernel has none (before Linux 5.6).
pub(super) fn time_namespace() -> u64 {
    stat("/proc/self/ns/time").map_or(0, |stat| stat.st_ino)
}

pub(super) fn write_name(to: &[AtomicU8; NAME_BYTES], name: &str) {
    let mut end = name.len().min(NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    for (to, byte) in to.iter().zip(name[..end].bytes()) {
        to.store(byte, Ordering::Relaxed);
    }
}

pub(super) fn read_name(from: &[AtomicU8; NAME_BYTES]) -> String {
    let bytes = from.iter().map(|byte| byte.load(Ordering::Relaxed));
    let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A page that is mapped into this process. Dropping it unmaps the page.
pub(super) struct Mapping(NonNull<Layout>);

// SAFETY: the memory is only ever accessed through atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a page shared. The file must have [`BYTES`] and be sealed against shrinking, so that no
    /// access can be beyond its end.
    pub(super) fn new(file: BorrowedFd<'_>, access: ProtFlags) -> io::Result<Self> {
        let length = NonZeroUsize::MIN.saturating_add(BYTES - 1);
        // SAFETY: the kernel chooses an address where nothing else is mapped.
        let address = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, file, 0) }?;
        Ok(Self(address.cast()))
    }

    pub(super) fn page(&self) -> &Layout {
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

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mapping").field(&self.page().state()).finish()
    }
}
