//! The socket that serves metrics.
//!
//! Invariant: canal removes a socket in the file system only if no process listens on it, and never
//! removes anything else at its path.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use crate::config::metrics_section::Listen;
use crate::metrics::request::Via;

/// All users can read a loopback port, so all may read this socket. Its directory can restrict
/// that.
const MODE: u32 = 0o666;

/// The socket that serves metrics.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Begins to listen.
    ///
    /// # Errors
    /// The address is in use, or this daemon may not use it.
    pub(crate) fn bind(listen: &Listen) -> io::Result<Self> {
        match listen {
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(listener))
            }
            Listen::Unix(path) => {
                let listener = match UnixListener::bind(path) {
                    Err(error) if error.kind() == ErrorKind::AddrInUse && is_left(path)? => {
                        fs::remove_file(path)?;
                        UnixListener::bind(path)?
                    }
                    bound => bound?,
                };
                listener.set_nonblocking(true)?;
                fs::set_permissions(path, Permissions::from_mode(MODE))?;
                Ok(Self::Unix(listener, path.clone()))
            }
        }
    }

    /// The next connection; `None` if there is none now.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub(crate) fn accept(&self) -> io::Result<Option<Stream>> {
        let accepted = match self {
            Self::Tcp(listener) => listener.accept().map(|(stream, _)| Stream::Tcp(stream)),
            Self::Unix(listener, _) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                let is_over = matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                );
                return if is_over { Ok(None) } else { Err(error) };
            }
        };
        match &stream {
            Stream::Tcp(stream) => stream.set_nonblocking(true)?,
            Stream::Unix(stream) => stream.set_nonblocking(true)?,
        }
        Ok(Some(stream))
    }

    pub(crate) fn via(&self) -> Via {
        match self {
            Self::Tcp(_) => Via::Tcp,
            Self::Unix(..) => Via::Unix,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = fs::remove_file(path);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
        }
    }
}

/// Whether there is a socket at a path on which no process listens any longer.
fn is_left(path: &Path) -> io::Result<bool> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Ok(false);
    }
    // A full backlog must not block the thread.
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let probe = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    Ok(connect(probe.as_raw_fd(), &UnixAddr::new(path)?) == Err(Errno::ECONNREFUSED))
}

/// A connection of a collector.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Signals to the peer that nothing follows.
    pub(crate) fn end(&self) {
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_was_left_is_taken_and_one_in_use_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.sock");
        // A killed daemon leaves its socket behind.
        drop(UnixListener::bind(&path).unwrap());
        // A process that another test starts has a copy of the socket until it executes its
        // program.
        canal_sys::rerun::wait_until("nobody listens", || UnixStream::connect(&path).is_err());
        let listen = Listen::Unix(path.clone());
        let first = Listener::bind(&listen).unwrap();
        assert_eq!(Listener::bind(&listen).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        UnixStream::connect(&path).unwrap();
        assert!(first.accept().unwrap().is_some());
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_or_a_link_in_the_way_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "kept").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [&file, &link] {
            let error = Listener::bind(&Listen::Unix(path.clone())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AddrInUse);
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
        assert!(link.is_symlink());
    }

    #[test]
    fn a_port_in_use_is_an_error() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = Listen::Tcp(taken.local_addr().unwrap());
        assert_eq!(Listener::bind(&listen).unwrap_err().kind(), ErrorKind::AddrInUse);
    }
}
