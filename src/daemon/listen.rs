//! Taking in connections.
//!
//! Invariant: running out of descriptors refuses newcomers and ends nobody.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::task::{Context, Poll};

use nix::errno::Errno;

use super::conn::too_many_connections;
use super::conns::Conns;
use super::limits::{ACCEPTS_PER_TURN, turned_away_max};
use crate::protocol::frame;
use crate::protocol::{Failure, Reply};
use crate::sys::peer;
use crate::sys::readable::Readable;

/// The socket that clients connect to.
#[derive(Debug)]
pub(super) struct Listener {
    socket: UnixListener,
    readable: Readable,
    /// Given up for a moment to accept, and refuse, when there is no other descriptor.
    spare: Option<File>,
    /// Whether it was said that there are too many.
    said: bool,
}

impl Listener {
    /// Called within the runtime.
    pub(super) fn new(socket: UnixListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let readable = Readable::new(OwnedFd::from(socket.try_clone()?))?;
        Ok(Self { socket, readable, spare: spare(), said: false })
    }

    pub(super) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        self.readable.poll(context)
    }

    /// Takes in those who wait to be accepted, as many as there may be at once.
    pub(super) fn accept(&mut self, conns: &mut Conns, connections_max: usize) {
        self.accept_by(|it| it.readable.attempt(|| it.socket.accept()), conns, connections_max);
    }

    /// The same, whether or not the runtime has heard yet that somebody is there.
    pub(super) fn accept_unasked(&mut self, conns: &mut Conns, connections_max: usize) {
        self.accept_by(|it| it.socket.accept(), conns, connections_max);
    }

    fn accept_by(
        &mut self,
        accept: impl Fn(&Self) -> io::Result<(UnixStream, SocketAddr)>,
        conns: &mut Conns,
        connections_max: usize,
    ) {
        for _ in 0..ACCEPTS_PER_TURN {
            match accept(self) {
                Ok((stream, _)) => self.take_in(stream, conns, connections_max),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_out_of_descriptors(&error) => {
                    if !self.refuse_one(&error) {
                        return;
                    }
                }
                // The peer went away before it was accepted, or a signal came.
                Err(error) => tracing::debug!(%error, "a connection was lost before it began"),
            }
        }
    }

    fn take_in(&mut self, stream: UnixStream, conns: &mut Conns, connections_max: usize) {
        let too_many = conns.len() >= connections_max;
        if too_many {
            self.say_once(connections_max);
        } else {
            self.said = false;
        }
        if conns.len() >= connections_max.saturating_add(turned_away_max(connections_max)) {
            return refuse(stream, &too_many_connections());
        }
        let credentials = match peer::credentials(stream.as_fd()) {
            Ok(credentials) => credentials,
            Err(error) => return tracing::debug!(%error, "a peer is not known"),
        };
        match conns.open(OwnedFd::from(stream), credentials, peer::ticks_now()) {
            Ok(conn) => conn.turned_away = too_many,
            Err(error) => tracing::warn!(%error, "a connection cannot be watched"),
        }
    }

    fn say_once(&mut self, connections_max: usize) {
        if !std::mem::replace(&mut self.said, true) {
            tracing::warn!("{connections_max} connections, more are turned away");
        }
    }

    /// Accepts one with the spare descriptor and turns it away; whether that went well.
    fn refuse_one(&mut self, error: &io::Error) -> bool {
        if !std::mem::replace(&mut self.said, true) {
            tracing::warn!(%error, "out of descriptors, newcomers are turned away");
        }
        if self.spare.take().is_none() {
            return false;
        }
        let accepted = self.socket.accept();
        let accepted = accepted.map(|(stream, _)| refuse(stream, &too_many_connections())).is_ok();
        self.spare = spare();
        accepted
    }
}

fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    let number = error.raw_os_error().unwrap_or(0);
    matches!(
        Errno::from_raw(number),
        Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS
    )
}

/// Tells a peer why, as far as it takes that at once, and closes the connection.
fn refuse(mut stream: UnixStream, failure: &Failure) {
    let mut bytes = Vec::new();
    let error = Some(failure.name.qualified());
    let parameters = serde_json::to_value(failure).unwrap_or_default();
    let told = frame::append(&Reply { parameters, error, ..Reply::default() }, &mut bytes);
    if told.is_err() || stream.set_nonblocking(true).is_err() {
        return;
    }
    // What it sent is read first: closed with something unread, it would get a reset.
    let mut buffer = [0; 4096];
    while matches!(stream.read(&mut buffer), Ok(n) if n == buffer.len()) {}
    let _ = stream.write_all(&bytes);
}
