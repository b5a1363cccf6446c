//! A simulated kernel, for the simulator in [`crate::sim`].
//!
//! The daemon gets the time and its knowledge of processes and peers only from this layer, so the
//! simulator can run the daemon itself on a [`Kernel`]. Sockets, pipes, epoll and files stay real:
//! with one thread they behave the same in each run.
//!
//! A simulated process descriptor is the read end of a pipe, readable once the process ends.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use nix::sys::signal::Signal;

use crate::peer::Credentials;
use crate::process::Origin;
pub use crate::process::Stat;

/// The answers of a simulated machine's kernel to the daemon that runs there.
pub trait Kernel: fmt::Debug {
    /// Milliseconds of CLOCK_BOOTTIME.
    fn boottime_ms(&self) -> u64;

    /// Milliseconds since 1970-01-01 UTC.
    fn unix_ms(&self) -> u64;

    /// The current time of the monotonic clock.
    fn instant(&self) -> Instant;

    /// A random number.
    fn random(&self) -> u128;

    /// An inotify instance with no unread events. It may be one that an earlier daemon of this
    /// machine used, with its watches.
    ///
    /// # Errors
    /// There is no descriptor left.
    fn inotify(&self) -> io::Result<OwnedFd>;

    /// The boot and the namespaces.
    fn origin(&self) -> Origin;

    /// Opens the process with this pid.
    ///
    /// # Errors
    /// ESRCH: there is no such process.
    fn open(&self, pid: u32) -> io::Result<OwnedFd>;

    /// The pid of a descriptor's process. `None` after its parent reaped it.
    fn pid(&self, process: Descriptor) -> Option<u32>;

    /// The inode that identifies a descriptor's process.
    fn inode(&self, process: Descriptor) -> u64;

    /// The user of a descriptor's process. `None` after its parent reaped it.
    fn uid(&self, process: Descriptor) -> Option<u32>;

    /// Sends a signal to a descriptor's process.
    ///
    /// # Errors
    /// ESRCH: its parent has reaped it.
    fn signal(&self, process: Descriptor, signal: Signal) -> io::Result<()>;

    /// The content of `/proc/PID/stat`. `None` if there is no such process.
    fn stat(&self, pid: u32) -> Option<Stat>;

    /// The pids of all processes.
    fn pids(&self) -> Vec<u32>;

    /// The children of a process.
    fn children(&self, pid: u32) -> Vec<u32>;

    /// A variable in the environment of a process.
    fn variable(&self, pid: u32, name: &str) -> Option<OsString>;

    /// Which of these files a process has open.
    fn has_open(&self, pid: u32, files: &[&File]) -> Vec<usize>;

    /// Whether a process has a file open that has this name, or had it before it was removed.
    fn has_named(&self, pid: u32, name: &str) -> bool;

    /// Whether a process runs canal itself.
    fn is_canal(&self, pid: u32) -> bool;

    /// The process at the other end of a socket.
    ///
    /// # Errors
    /// No simulated process has the other end.
    fn peer(&self, socket: BorrowedFd<'_>) -> io::Result<Credentials>;

    /// The descriptor of the process at the other end of a socket. `None` after its parent reaped
    /// it.
    ///
    /// # Errors
    /// No simulated process has the other end.
    fn peer_pidfd(&self, socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>>;
}

/// Identifies a simulated process descriptor: the inode of its pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Descriptor(u64);

impl Descriptor {
    /// The descriptor whose pipe this is.
    pub fn of(pipe: impl AsFd) -> Self {
        Self(nix::sys::stat::fstat(pipe).map_or(0, |stat| stat.st_ino))
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<dyn Kernel>>> = const { RefCell::new(None) };
}

/// The simulated kernel that answers on this thread now, if any.
pub fn current() -> Option<Rc<dyn Kernel>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Makes a simulated kernel answer while `work` runs.
pub fn on<T>(kernel: Rc<dyn Kernel>, work: impl FnOnce() -> T) -> T {
    let _restored = Restored(CURRENT.replace(Some(kernel)));
    work()
}

/// Makes the previous kernel answer again, also after a panic.
struct Restored(Option<Rc<dyn Kernel>>);

impl Drop for Restored {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}
