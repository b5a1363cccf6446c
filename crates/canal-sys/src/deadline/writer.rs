//! The daemon's side.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl, open};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::ProtFlags;
use nix::sys::stat::Mode;
use nix::unistd::ftruncate;

use super::layout::{BYTES, MAGIC, Mapping, VERSION, time_namespace, write_name};
use super::{Deadline, Lost, State, Why};
use crate::{clock, fds};

/// The page of one incarnation, for writing. Dropping it shows its readers that the writer is gone;
/// the content of the page stays.
#[derive(Debug)]
pub struct Writer {
    mapping: Mapping,
    /// A read-only descriptor.
    page: OwnedFd,
    /// Reaches its end when we close `line_kept`, or when the kernel closes it at the end of this
    /// process.
    line: OwnedFd,
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
        Ok(Self { mapping, page: read_only(file)?, line, line_kept: Some(line_kept) })
    }

    /// Moves the deadline. After [`Self::lost`] readers ignore it.
    pub fn publish(&self, deadline: Deadline) {
        self.mapping.page().publish(deadline);
    }

    /// Reports to all readers at once that the incarnation's holds are lost. The daemon calls this
    /// before it acts on the loss, so that the supervisor of a command that it ends can find out
    /// why.
    pub fn lost(&mut self, why: Why) {
        self.mapping.page().lose(Lost { why, at: clock::boottime_ms() });
        self.line_kept = None;
    }

    /// The current content.
    #[must_use]
    pub fn state(&self) -> State {
        self.mapping.page().state()
    }

    /// The page's descriptor, for `deadline_fd` of a grant.
    #[must_use]
    pub fn page(&self) -> BorrowedFd<'_> {
        self.page.as_fd()
    }

    /// All descriptors that a forked process must keep open when it closes the others.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [&self.page, &self.line].into_iter().chain(&self.line_kept).map(AsFd::as_fd)
    }

    /// The liveness pipe's descriptor, for `liveness_fd` of a grant.
    #[must_use]
    pub fn line(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }
}

/// Opens the same file for reading. The seals already keep other processes from writing; a
/// read-only descriptor is a second barrier.
fn read_only(file: OwnedFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    match open(path.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()) {
        Ok(page) => Ok(page),
        // Without /proc, only the seals protect the page.
        Err(_) => Ok(file),
    }
}
