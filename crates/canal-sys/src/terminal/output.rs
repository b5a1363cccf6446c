//! Output to a terminal that may accept none: stopped by Ctrl-S, or behind a stalled connection.
//! And whether the output of this process still has a reader.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags};
use nix::sys::termios::{FlushArg, tcflush};

use crate::fds::{events_now, poll_within};

/// How long the last output waits for a terminal that accepts nothing.
const PATIENCE: Duration = Duration::from_secs(1);

/// A terminal, for writing.
#[derive(Debug)]
pub struct TerminalOutput {
    /// The device, reopened if possible: other processes share the first description, and must not
    /// find it non-blocking.
    device: File,
}

impl TerminalOutput {
    /// Reopens the terminal of a descriptor. If the user may not, as after su(1), writes block.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn of(terminal: impl AsFd) -> io::Result<Self> {
        let fd = terminal.as_fd();
        let again = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let opened = OpenOptions::new().write(true).custom_flags(flags).open(again);
        let device = match opened {
            Ok(device) => device,
            Err(_) => File::from(fd.try_clone_to_owned()?),
        };
        Ok(Self { device })
    }

    /// Writes everything, but stops when `stop` becomes readable. Returns whether everything was
    /// written.
    ///
    /// # Errors
    /// The terminal cannot be written, for example because it is gone.
    pub fn write_until(&self, bytes: &[u8], stop: BorrowedFd<'_>) -> io::Result<bool> {
        self.write(bytes, Some(stop), None)
    }

    /// Writes the last output. Discards earlier output that the terminal has not accepted.
    ///
    /// # Errors
    /// The terminal cannot be written, for example because it is gone.
    pub fn write_last(&self, bytes: &[u8]) -> io::Result<()> {
        if !self.write(bytes, None, Some(PATIENCE))? {
            tcflush(&self.device, FlushArg::TCOFLUSH)?;
            self.write(bytes, None, Some(Duration::ZERO))?;
        }
        Ok(())
    }

    /// Writes everything. Gives up if the terminal accepts nothing for `patience`.
    fn write(
        &self,
        mut bytes: &[u8],
        stop: Option<BorrowedFd<'_>>,
        patience: Option<Duration>,
    ) -> io::Result<bool> {
        while !bytes.is_empty() {
            match (&self.device).write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let mut polled = vec![PollFd::new(self.device.as_fd(), PollFlags::POLLOUT)];
                    polled.extend(stop.map(|stop| PollFd::new(stop, PollFlags::POLLIN)));
                    let is_over = poll_within(&mut polled, patience)?;
                    if is_over || polled.get(1).is_some_and(|stop| stop.any() == Some(true)) {
                        return Ok(false);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// The readers of standard output and standard error.
#[derive(Debug, Default)]
pub struct OutputReaders {
    /// Whether each had lost its readers at the last check.
    is_gone: [bool; 2],
}

impl OutputReaders {
    /// The descriptors to poll, for no events: poll(2) reports unasked that a pipe has lost its
    /// reader, and that a terminal or a connection was hung up. Omits descriptors that have already
    /// lost their reader, because poll would never sleep on them.
    pub fn polled<'a>(&self) -> impl Iterator<Item = PollFd<'a>> + use<'a> {
        let left = [1, 2].into_iter().zip(self.is_gone).filter(|(_, is_gone)| !is_gone);
        left.map(|(fd, _)| PollFd::new(standard(fd), PollFlags::empty()))
    }

    /// Checks both. Returns whether neither has a reader.
    pub fn are_gone(&mut self) -> bool {
        self.is_gone = [1, 2].map(|fd| is_broken(standard(fd)));
        self.is_gone == [true; 2]
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
    events_now(fd, PollFlags::empty()).intersects(PollFlags::POLLERR | PollFlags::POLLHUP)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::io::Read as _;
    use std::net::Shutdown;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use nix::pty::openpty;
    use nix::sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr};
    use nix::unistd::pipe;

    use super::*;
    use crate::fds;
    use crate::rerun::wait_until;

    /// More than a terminal accepts while no process reads it.
    const MUCH: usize = 1 << 20;

    fn terminal() -> (File, OwnedFd) {
        let pair = openpty(None, None).unwrap();
        let mut modes = tcgetattr(&pair.slave).unwrap();
        cfmakeraw(&mut modes);
        tcsetattr(&pair.slave, SetArg::TCSANOW, &modes).unwrap();
        (File::from(pair.master), pair.slave)
    }

    #[test]
    fn what_a_terminal_takes_is_written() {
        let (mut master, slave) = terminal();
        let output = TerminalOutput::of(&slave).unwrap();
        let reader = std::thread::spawn(move || {
            let mut read = vec![0; MUCH];
            master.read_exact(&mut read).unwrap();
            read
        });
        let (stop, _keep) = pipe().unwrap();
        assert!(output.write_until(&vec![b'x'; MUCH], stop.as_fd()).unwrap());
        assert!(reader.join().unwrap().iter().all(|byte| *byte == b'x'));
    }

    #[test]
    fn a_terminal_that_takes_nothing_is_left_when_something_else_is_to_be_done() {
        let (_master, slave) = terminal();
        let output = TerminalOutput::of(&slave).unwrap();
        let (stop, now) = pipe().unwrap();
        let writer =
            std::thread::spawn(move || output.write_until(&vec![b'x'; MUCH], stop.as_fd()));
        File::from(now).write_all(b"!").unwrap();
        assert!(!writer.join().unwrap().unwrap());
    }

    #[test]
    fn the_last_words_reach_a_terminal_that_took_nothing() {
        let (mut master, slave) = terminal();
        let output = TerminalOutput::of(&slave).unwrap();
        let (stop, now) = pipe().unwrap();
        File::from(now).write_all(b"!").unwrap();
        assert!(!output.write_until(&vec![b'x'; MUCH], stop.as_fd()).unwrap());
        output.write_last(b"good bye").unwrap();
        // The description that others share is unchanged.
        let flags = nix::fcntl::fcntl(&slave, nix::fcntl::FcntlArg::F_GETFL).unwrap();
        assert_eq!(flags & libc::O_NONBLOCK, 0);
        drop((output, slave));
        let (mut read, mut piece) = (Vec::new(), [0; 4096]);
        while !read.ends_with(b"good bye") {
            let count = master.read(&mut piece).unwrap();
            read.extend_from_slice(&piece[..count]);
        }
        assert!(read.len() < MUCH, "{} bytes", read.len());
    }

    #[test]
    fn a_pipe_is_broken_without_its_reader() {
        let (reader, writer) = fds::pipe().unwrap();
        assert!(!is_broken(&writer));
        drop(reader);
        // A program that another test starts has a copy until it is executed.
        wait_until("its reader is missed", || is_broken(&writer));
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
        wait_until("the other end is missed", || is_broken(&ours));
    }

    #[test]
    fn a_file_and_the_null_device_are_never_broken() {
        assert!(!is_broken(tempfile::tempfile().unwrap()));
        assert!(!is_broken(OpenOptions::new().write(true).open("/dev/null").unwrap()));
        assert!(!is_broken(File::open("/dev/null").unwrap()));
    }
}
