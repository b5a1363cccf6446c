//! The side of the supervisor that runs a command.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::mman::ProtFlags;
use nix::sys::stat::fstat;

use super::State;
use super::layout::{BYTES, MAGIC, Mapping, VERSION, read_name, time_namespace};

/// The page of an incarnation, for reading.
#[derive(Debug)]
pub struct Reader {
    mapping: Mapping,
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
        let wrong = |text| io::Error::new(io::ErrorKind::InvalidData, text);
        let sealed = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        // Only a memfd has seals; other files return EINVAL.
        let seals = fcntl(&page, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_retain);
        if !seals.is_ok_and(|seals| seals.contains(sealed)) {
            return Err(wrong("the deadline page is not sealed"));
        }
        if usize::try_from(fstat(&page)?.st_size) != Ok(BYTES) {
            return Err(wrong("the deadline page has a different size"));
        }
        let mapping = Mapping::new(page.as_fd(), ProtFlags::PROT_READ)?;
        let layout = mapping.page();
        if layout.magic.load(Ordering::Relaxed) != MAGIC {
            return Err(wrong("the file is not a deadline page"));
        }
        if layout.version.load(Ordering::Relaxed) != VERSION {
            return Err(wrong("the deadline page has another version"));
        }
        if layout.time_namespace.load(Ordering::Relaxed) != time_namespace() {
            return Err(wrong(
                "the daemon is in another time namespace, so its deadlines are not valid here",
            ));
        }
        Ok(Self { mapping, page, line })
    }

    /// The current content.
    #[must_use]
    pub fn state(&self) -> State {
        self.mapping.page().state()
    }

    /// The id of the incarnation.
    #[must_use]
    pub fn host(&self) -> u64 {
        self.mapping.page().host.load(Ordering::Relaxed)
    }

    /// The name of the engine in messages.
    #[must_use]
    pub fn engine(&self) -> String {
        read_name(&self.mapping.page().engine)
    }

    /// The name of the host in messages.
    #[must_use]
    pub fn label(&self) -> String {
        read_name(&self.mapping.page().label)
    }

    /// Whether the page no longer changes: the incarnation is lost, or its daemon has ended.
    #[must_use]
    pub fn is_left(&self) -> bool {
        let mut polled = [PollFd::new(self.line.as_fd(), PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// The liveness pipe, to poll for its end.
    #[must_use]
    pub fn line(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }

    /// The descriptors to pass on: the page, then the liveness pipe.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.page.as_fd(), self.line.as_fd()]
    }
}
