//! Whether this process's output still has a reader.

use std::os::fd::{AsFd, BorrowedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The readers of standard output and standard error.
#[derive(Debug)]
pub struct Audience {
    /// Whether each had lost its readers at the last check.
    is_gone: [bool; 2],
}

impl Audience {
    /// Starts without a check.
    #[must_use]
    pub fn new() -> Self {
        Self { is_gone: [false; 2] }
    }

    /// The descriptors to poll, for no events: poll(2) reports unasked that a pipe has lost its
    /// reader, and that a terminal or a connection was hung up. Omits descriptors that have already
    /// lost their reader, because poll would never sleep on them.
    pub fn polled<'a>(&self) -> impl Iterator<Item = PollFd<'a>> + use<'a> {
        let left = [1, 2].into_iter().zip(self.is_gone).filter(|(_, is_gone)| !is_gone);
        left.map(|(fd, _)| PollFd::new(standard(fd), PollFlags::empty()))
    }

    /// Checks both. Returns whether neither has a reader.
    pub fn has_left(&mut self) -> bool {
        self.is_gone = [1, 2].map(|fd| is_broken(standard(fd)));
        self.is_gone == [true; 2]
    }
}

impl Default for Audience {
    fn default() -> Self {
        Self::new()
    }
}

/// Standard output (1) or standard error (2).
fn standard(fd: i32) -> BorrowedFd<'static> {
    // SAFETY: canal never closes them, and Rust's runtime opens /dev/null where they were closed.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Whether a pipe has lost its reader, or a terminal or a connection was hung up. A file is never
/// broken.
fn is_broken(fd: impl AsFd) -> bool {
    let mut polled = [PollFd::new(fd.as_fd(), PollFlags::empty())];
    let broken = PollFlags::POLLERR | PollFlags::POLLHUP;
    matches!(poll(&mut polled, PollTimeout::ZERO), Ok(1))
        && polled[0].revents().is_some_and(|events| events.intersects(broken))
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::fds;

    #[test]
    fn a_pipe_is_broken_without_its_reader() {
        let (reader, writer) = fds::pipe().unwrap();
        assert!(!is_broken(&writer));
        drop(reader);
        assert!(is_broken(&writer));
    }

    #[test]
    fn a_connection_is_broken_when_its_other_end_is_shut_down_or_closed() {
        let (ours, its) = UnixStream::pair().unwrap();
        assert!(!is_broken(&ours));
        its.shutdown(Shutdown::Write).unwrap();
        assert!(!is_broken(&ours), "it still reads");
        its.shutdown(Shutdown::Both).unwrap();
        assert!(is_broken(&ours));
        let (ours, its) = UnixStream::pair().unwrap();
        drop(its);
        assert!(is_broken(&ours));
    }

    #[test]
    fn a_file_and_the_null_device_are_never_broken() {
        assert!(!is_broken(tempfile::tempfile().unwrap()));
        assert!(!is_broken(OpenOptions::new().write(true).open("/dev/null").unwrap()));
        assert!(!is_broken(File::open("/dev/null").unwrap()));
    }
}
