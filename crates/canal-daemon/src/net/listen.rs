//! Accepts connections, and limits how many there are.
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
use crate::config::user_limits::KEPT_FOR_GRANTS;
use crate::net::connections::{Accepted, Conns, Source};
use canal_protocol::{ErrorName, Failure};
use canal_sys::{clock, peer};

/// The most connections accepted in a turn, so that the open connections are served, too.
const ACCEPTS_PER_TURN: usize = 256;

/// How long the daemon stops accepting connections if it has no descriptor left to refuse one with.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// The most bytes per turn that are read and discarded from clients that are refused immediately.
const REFUSED_BYTES_PER_TURN: usize = 256 * 1024;

/// How many connections over the limit stay open until their client has received the error.
fn turned_away_max(connections_max: usize) -> usize {
    (connections_max / 32).min(64)
}

/// A user may have this many times as many connections as are still left for all users. That is
/// three quarters of all connections if no other user has any.
const SHARE_OF_WHAT_IS_LEFT: usize = 3;

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
        let Some(why) = turned_away else {
            self.said = false;
            conns.open(OwnedFd::from(stream), credentials, peer::ticks_now(), None);
            return;
        };
        if !std::mem::replace(&mut self.said, true) {
            tracing::warn!("{why}; refusing more");
        }
        if conns.taken_in().1 >= turned_away_max(room.all) {
            return refuse(stream, &why, budget);
        }
        conns.open(OwnedFd::from(stream), credentials, peer::ticks_now(), Some(Box::new(why)));
    }

    /// Accepts a client with the spare descriptor and turns it away. Returns whether this worked.
    fn refuse_one(&mut self, error: &io::Error, budget: &mut usize) -> bool {
        if !std::mem::replace(&mut self.said, true) {
            tracing::warn!(%error, "out of descriptors; refusing new connections");
        }
        if self.spare.take().or_else(spare).is_none() {
            return false;
        }
        let accepted = self.socket.accept();
        let accepted = accepted.map(|(stream, _)| refuse(stream, &full(), budget)).is_ok();
        self.spare = spare();
        accepted
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
    let number = error.raw_os_error().unwrap_or(0);
    matches!(
        Errno::from_raw(number),
        Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS
    )
}

/// Sends the failure to a client, as far as possible without waiting, and closes the connection.
fn refuse(mut stream: UnixStream, failure: &Failure, budget: &mut usize) {
    let Some(bytes) = Answer::failure(failure).message else { return };
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
    let _ = stream.write_all(&bytes);
}

/// The failure for a client if the limit on all connections is reached.
fn full() -> Failure {
    let message = "the daemon has reached its limit on connections";
    Failure::new(ErrorName::TooManyConnections, message).hint(
        "try again later, or raise `connections` in the configuration or the limit on open files",
    )
}

/// The failure for a client whose user already has its share.
fn has_share(uid: u32, has: usize) -> Failure {
    let message =
        format!("uid {uid} has {has} connections to the daemon, the most that one user may have");
    Failure::new(ErrorName::TooManyConnections, message).hint(
        "try again later, or raise `connections_per_user` or `connections` in the configuration",
    )
}

/// The limits on connections.
///
/// Invariant: root and the user that runs the daemon are accepted while there is any room. Whatever
/// other users do, every user gets a part of the rest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// The limit for all users together.
    pub all: usize,
    /// The limit for each user, if the configuration sets one.
    pub each: Option<usize>,
    /// The user that runs the daemon.
    pub own: u32,
}

impl ConnectionLimits {
    /// Why to turn away another connection of a user; `None` to accept it. `there` counts the
    /// connections of all users, `has` those of this user.
    pub(crate) fn turns_away(&self, uid: u32, there: usize, has: usize) -> Option<Failure> {
        if uid == 0 || uid == self.own {
            return (there >= self.all).then(full);
        }
        let kept = self.all / KEPT_FOR_GRANTS;
        let left = self.all.saturating_sub(kept).saturating_sub(there);
        if left == 0 {
            return Some(full());
        }
        // A share of the remaining room, not of the whole, so that a few users together cannot take
        // everything.
        let most = self.each.unwrap_or(left.saturating_mul(SHARE_OF_WHAT_IS_LEFT));
        (has >= most).then(|| has_share(uid, has))
    }
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

    const ROOM: ConnectionLimits = ConnectionLimits { all: 1600, each: None, own: 7 };

    /// Lets users connect in turn until all are turned away. Returns how many connections each user
    /// has.
    fn filled(room: ConnectionLimits, users: &[u32]) -> Vec<usize> {
        let mut has = vec![0; users.len()];
        loop {
            let before = has.clone();
            for (at, uid) in users.iter().enumerate() {
                let there = has.iter().sum();
                has[at] += usize::from(room.turns_away(*uid, there, has[at]).is_none());
            }
            if has == before {
                return has;
            }
        }
    }

    #[test]
    fn one_user_gets_three_quarters_of_the_connections_and_many_leave_room_for_another() {
        let alone = filled(ROOM, &[1000])[0];
        assert!((1100..=1130).contains(&alone), "{alone}");
        for count in [2, 5, 50] {
            let users: Vec<u32> = (1000..1000 + count).collect();
            let has = filled(ROOM, &users);
            let there = has.iter().sum::<usize>();
            assert!(has.iter().all(|each| *each > 0), "{has:?}");
            assert_eq!(ROOM.turns_away(999, there, 0), None, "{there} are there");
            assert_eq!(ROOM.turns_away(0, there, 0), None);
        }
    }

    #[test]
    fn root_and_the_daemons_own_user_get_in_while_there_is_room_at_all() {
        for uid in [0, 7] {
            assert_eq!(filled(ROOM, &[uid]), [1600]);
            assert_eq!(ROOM.turns_away(uid, 1600, 0), Some(full()));
        }
        assert_eq!(ROOM.turns_away(8, 1500, 0), Some(full()));
        assert_eq!(ROOM.turns_away(7, 1500, 0), None);
    }

    #[test]
    fn the_configured_limit_per_user_does_not_bind_root_and_the_daemons_user() {
        let room = ConnectionLimits { each: Some(3), ..ROOM };
        assert_eq!(filled(room, &[1000, 1001]), [3, 3]);
        let why = room.turns_away(1000, 6, 3);
        assert_eq!(why, Some(has_share(1000, 3)));
        assert_eq!(room.turns_away(7, 6, 3), None);
    }
}
