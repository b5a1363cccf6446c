//! Accepts connections.
//!
//! Invariant: when descriptors run out, the daemon refuses new clients and closes no open
//! connection. If it cannot even refuse, new clients wait in the queue, and the daemon tries again
//! soon.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::calls::call::Answer;
use crate::net::all_connections::{Accepted, Conns, Source};
use crate::net::connection_limits::{ConnectionLimits, full};
use canal_protocol::Failure;
use canal_sys::{clock, peer};

/// The most connections accepted in a turn, so that the open connections are served, too.
const ACCEPTS_PER_TURN: usize = 256;

/// How long the daemon stops accepting connections if it has no descriptor left to refuse one with.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// The most bytes per turn that are read and discarded from clients that are refused immediately.
const REFUSED_BYTES_PER_TURN: usize = 256 * 1024;

/// The socket that clients connect to.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: UnixListener,
    /// Closed briefly to accept and refuse a client when there is no other descriptor.
    spare: Option<File>,
    /// Whether the daemon has already logged that there are too many clients.
    said: bool,
    /// The time until which the daemon accepts no client, because it had no descriptor to refuse
    /// one with.
    pub pauses_until: Option<Instant>,
}

impl Listener {
    pub(crate) fn new(socket: UnixListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket, spare: spare(), said: false, pauses_until: None })
    }

    /// Accepts queued connections, up to the limit of a turn. If there is no room, it first closes
    /// connections that have been idle for `idle`.
    pub(crate) fn accept(
        &mut self,
        conns: &mut Conns,
        room: ConnectionLimits,
        idle: Duration,
    ) -> Accepted {
        let mut budget = REFUSED_BYTES_PER_TURN;
        self.pauses_until = None;
        for count in 0..ACCEPTS_PER_TURN {
            match self.socket.accept() {
                Ok((stream, _)) => self.take_in(stream, conns, room, idle, &mut budget),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // The listener becomes readable when the next client connects.
                    conns.reported.remove(&Source::LISTENER);
                    return Accepted { count, more: false };
                }
                Err(error) if is_out_of_descriptors(&error) => {
                    if !self.refuse_one(&error, &mut budget) {
                        conns.reported.remove(&Source::LISTENER);
                        self.pauses_until = Some(clock::now() + ACCEPT_AGAIN_AFTER);
                        return Accepted { count, more: false };
                    }
                }
                // The client left before it was accepted, or a signal arrived.
                Err(error) => tracing::debug!(%error, "lost a connection before accepting it"),
            }
        }
        Accepted { count: ACCEPTS_PER_TURN, more: true }
    }

    fn take_in(
        &mut self,
        stream: UnixStream,
        conns: &mut Conns,
        room: ConnectionLimits,
        idle: Duration,
        budget: &mut usize,
    ) {
        let credentials = match peer::credentials(stream.as_fd()) {
            Ok(credentials) => credentials,
            Err(error) => return tracing::debug!(%error, "cannot identify a peer"),
        };
        let uid = credentials.uid;
        let judged = |conns: &Conns| room.turns_away(uid, conns.taken_in().0, conns.of_user(uid));
        let mut turned_away = judged(conns);
        if turned_away.is_some() && conns.close_idle(clock::now(), idle) {
            turned_away = judged(conns);
        }
        let had_said = std::mem::replace(&mut self.said, turned_away.is_some());
        if let Some(why) = &turned_away {
            if !had_said {
                tracing::warn!("{why}; refusing more");
            }
            // Some connections over the limit stay open until their client has received the error.
            if conns.taken_in().1 >= (room.all / 32).min(64) {
                return refuse(stream, why, budget);
            }
        }
        let turned_away = turned_away.map(Box::new);
        conns.open(OwnedFd::from(stream), credentials, peer::ticks_now(), turned_away);
    }

    /// Accepts a client with the spare descriptor and turns it away. Returns whether this worked.
    fn refuse_one(&mut self, error: &io::Error, budget: &mut usize) -> bool {
        if !std::mem::replace(&mut self.said, true) {
            tracing::warn!(%error, "out of descriptors; refusing new connections");
        }
        if self.spare.take().or_else(spare).is_none() {
            return false;
        }
        let accepted = self.socket.accept().map(|(stream, _)| refuse(stream, &full(), budget));
        self.spare = spare();
        accepted.is_ok()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    use Errno::{EMFILE, ENFILE, ENOBUFS, ENOMEM};
    let number = error.raw_os_error().map(Errno::from_raw);
    matches!(number, Some(EMFILE | ENFILE | ENOMEM | ENOBUFS))
}

/// Sends the failure to a client, as far as possible without waiting, and closes the connection.
fn refuse(mut stream: UnixStream, failure: &Failure, budget: &mut usize) {
    if stream.set_nonblocking(true).is_err() {
        return;
    }
    // Reads first what the client sent, because closing a socket with unread data sends a reset. A
    // client that continues to send gets the reset.
    let mut buffer = [0; 4096];
    while *budget > 0 {
        let read = stream.read(&mut buffer).unwrap_or(0);
        *budget = budget.saturating_sub(read);
        if read < buffer.len() {
            break;
        }
    }
    let _ = stream.write_all(&Answer::failure(failure).message);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejected_peer_that_keeps_writing_costs_a_bounded_share_of_the_turn() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let writing = scope.spawn(move || {
                let mut sent = 0;
                while let Ok(count) = theirs.write(&[0; 64 * 1024]) {
                    sent += count;
                }
                sent
            });
            let mut budget = REFUSED_BYTES_PER_TURN;
            while budget > 0 {
                let again = ours.try_clone().unwrap();
                refuse(again, &full(), &mut budget);
            }
            // With no budget left, the daemon reads nothing.
            refuse(ours, &full(), &mut budget);
            assert!(writing.join().unwrap() >= REFUSED_BYTES_PER_TURN);
        });
    }
}
