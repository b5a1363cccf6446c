//! Connects to the process that listens at a place.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use canal_protocol::place::Place;
use canal_sys::dir::with_c_str;

use super::silence::{Limits, Owed};
use super::stream::{Connection, activity};
use crate::client::{ClientError, Options, Result};

/// A socket, its address, and whether it is connected.
type Tried = (OwnedFd, UnixAddr, Result<(), Errno>);

fn try_once(place: &Place) -> Result<Tried> {
    let address =
        with_c_str(&place.socket, UnixAddr::new).map_err(|error| refused(place, error))?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket =
        socket(AddressFamily::Unix, SockType::Stream, flags, None).map_err(io::Error::from)?;
    let connected = connect(socket.as_raw_fd(), &address);
    Ok((socket, address, connected))
}

/// Connects without waiting; `None` if no process listens, or if its queue of connections is full.
pub(crate) fn connect_if_free(place: &Place) -> Result<Option<OwnedFd>> {
    let (socket, _, connected) = try_once(place)?;
    match connected {
        Ok(()) => Ok(Some(socket)),
        Err(Errno::ENOENT | Errno::ECONNREFUSED | Errno::EAGAIN) => Ok(None),
        Err(error) => Err(refused(place, error)),
    }
}

/// Connects to the process that listens; `None` if none does.
pub(crate) fn connect_if_running(place: &Place, options: &Options) -> Result<Option<Connection>> {
    let (socket, address, mut connected) = try_once(place)?;
    let mut owed = Owed::new(Limits::from(options));
    // The first wait gets the whole time, because each further one starts at the end of the queue.
    let mut patience = options.answer;
    while connected == Err(Errno::EAGAIN) {
        connected = wait_in_line(&socket, &address, patience);
        if owed.grow(patience, || activity(recorded_pid(place))) {
            break;
        }
        patience = owed.patience();
    }
    match connected {
        Ok(()) => Ok(Some(Connection::new(socket))),
        Err(Errno::ENOENT | Errno::ECONNREFUSED) => Ok(None),
        Err(Errno::EAGAIN) => Err(ClientError::silent(recorded_pid(place))),
        Err(error) => Err(refused(place, error)),
    }
}

fn refused(place: &Place, error: Errno) -> ClientError {
    let error = io::Error::from(error);
    ClientError::Place(format!("cannot connect to {}: {error}", place.socket.display()))
}

/// Waits in the full queue of connections that the daemon has not accepted, as a blocking
/// connect(2) does. SO_SNDTIMEO bounds the wait; EAGAIN means that the time has passed.
fn wait_in_line(socket: &OwnedFd, address: &UnixAddr, patience: Duration) -> Result<(), Errno> {
    // 0 would mean a wait without end.
    let milliseconds = i64::try_from(patience.as_millis()).unwrap_or(i64::MAX).max(1);
    setsockopt(socket, sockopt::SendTimeout, &TimeVal::milliseconds(milliseconds))?;
    fcntl(socket.as_fd(), FcntlArg::F_SETFL(OFlag::empty()))?;
    let connected = loop {
        match connect(socket.as_raw_fd(), address) {
            Err(Errno::EINTR) => {}
            other => break other,
        }
    };
    fcntl(socket.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    connected
}

/// The pid that the daemon wrote to its instance lock.
pub(crate) fn recorded_pid(place: &Place) -> Option<u32> {
    pid_in(&place.dir.join("lock"))
}

/// The pid that a file contains.
pub(crate) fn pid_in(path: &Path) -> Option<u32> {
    let text = std::fs::read(path).ok()?;
    String::from_utf8_lossy(&text).split_whitespace().next()?.parse().ok()
}
