//! The socket that serves metrics.
//!
//! Invariant: canal removes a socket in the file system only if no process listens on it, and never
//! removes anything else at its path.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::config::metrics_section::Listen;
use crate::metrics::request::Via;

/// All users can read a loopback port, so all may read this socket. Its directory can restrict
/// that.
const MODE: u32 = 0o666;

/// The socket that serves metrics.
#[derive(Debug)]
pub(crate) struct Listener {
    pub socket: Socket,
    /// The path of a socket in the file system.
    path: Option<PathBuf>,
}

impl Listener {
    /// Begins to listen.
    ///
    /// # Errors
    /// The address is in use, or this daemon may not use it.
    pub(crate) fn bind(listen: &Listen) -> io::Result<Self> {
        let (socket, path) = match listen {
            Listen::Tcp(address) => (Socket::from(TcpListener::bind(address)?), None),
            Listen::Unix(path) => {
                let listener = match UnixListener::bind(path) {
                    Err(error) if error.kind() == ErrorKind::AddrInUse && is_left(path)? => {
                        fs::remove_file(path)?;
                        UnixListener::bind(path)?
                    }
                    bound => bound?,
                };
                fs::set_permissions(path, Permissions::from_mode(MODE))?;
                (Socket::from(OwnedFd::from(listener)), Some(path.clone()))
            }
        };
        socket.set_nonblocking(true)?;
        Ok(Self { socket, path })
    }

    /// The next connection; `None` if there is none now.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub(crate) fn accept(&self) -> io::Result<Option<Socket>> {
        use ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
        match self.socket.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                Ok(Some(stream))
            }
            Err(error) if matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn via(&self) -> Via {
        if self.path.is_some() { Via::Unix } else { Via::Tcp }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether there is a socket at a path on which no process listens any longer.
fn is_left(path: &Path) -> io::Result<bool> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Ok(false);
    }
    // A full backlog must not block the thread.
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    probe.set_nonblocking(true)?;
    let connected = probe.connect(&SockAddr::unix(path)?);
    Ok(connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

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
