//! One client's connection: what came and was not served yet, what was not taken yet.
//!
//! Invariant: a reply is written whole or the connection is closed; nothing is ever put between the
//! parts of one.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libc::MSG_DONTWAIT;
use nix::sys::epoll::EpollFlags;
use serde::Serialize;

use super::call::{self, Call};
use super::limits::{CALLS_AHEAD_MAX, OUTPUT_BYTES_MAX, READ_BYTES_PER_TURN};
use super::output::Output;
use crate::core::{Key, ProcessId, RequestId};
use crate::protocol::frame::{self, Decoder, FrameError};
use crate::protocol::limits::MESSAGE_BYTES_MAX;
use crate::protocol::service::ServiceError;
use crate::protocol::{ErrorName, Failure};
use crate::sys;
use crate::sys::peer::Credentials;

/// Names a connection as long as it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ConnId(pub(super) usize);

/// What a connection's first call in the queue waits behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// Nothing: the next call can be served.
    Nothing,
    /// This request waits.
    Waits(RequestId),
    /// The log of many hosts: see [`super::underway`].
    Pending,
    /// A request that may not wait was put aside until a holder that is exiting has ended.
    Aside,
    /// It watches the status, of this key or of all.
    Watches(Option<Key>),
}

/// One client's connection.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    pub(super) peer: Credentials,
    /// When it was accepted, in clock ticks since boot.
    pub(super) accepted_ticks: u64,
    /// Who the peer is beyond the reuse of its number, once that was asked.
    pub(super) process: Option<ProcessId>,
    decoder: Decoder,
    fds: Vec<OwnedFd>,
    pub(super) calls: VecDeque<Call>,
    pub(super) doing: Doing,
    /// A grant that was answered and not followed by another call: the peer may not have read it.
    pub(super) untold: Option<RequestId>,
    /// Provisional grants that wait for a confirmation.
    pub(super) provisional: Vec<RequestId>,
    output: Output,
    /// Nothing more is served; closed as soon as the output is written.
    pub(super) closing: bool,
    /// Something came that is no call: what comes after it is thrown away.
    broke_off: bool,
    /// The peer said all that it had to say. What it sent before is still served.
    pub(super) heard_end: bool,
    /// The caller of the call at work wants no reply.
    pub(super) mute: bool,
    /// It came when there were too many: its first call is answered with that.
    pub(super) turned_away: bool,
    /// It is in the list of those to be flushed.
    pub(super) touched: bool,
    /// The events that it is watched for; none before the end of its first turn.
    pub(super) watched_for: EpollFlags,
    /// Its peer becomes the command when it is granted what it asks for: nothing follows, and its
    /// end, which is all that matters then, is seen without a connection.
    pub(super) departs: bool,
    /// It is closed soon, whether the peer reads or not.
    pub(super) counts_down: bool,
}

/// What reading brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// All that is there for now.
    All,
    /// There may be more; it has to wait for the next turn.
    NotAll,
    /// The peer closed the connection, or its writing half, which counts as much.
    Closed,
    /// The peer closed the connection and had not read all that was sent.
    ClosedUnread,
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, peer: Credentials, accepted_ticks: u64) -> Self {
        Self {
            socket,
            peer,
            accepted_ticks,
            process: None,
            decoder: Decoder::new(MESSAGE_BYTES_MAX),
            fds: Vec::new(),
            calls: VecDeque::new(),
            doing: Doing::Nothing,
            untold: None,
            provisional: Vec::new(),
            output: Output::default(),
            closing: false,
            broke_off: false,
            heard_end: false,
            mute: false,
            turned_away: false,
            touched: false,
            watched_for: EpollFlags::empty(),
            departs: false,
            counts_down: false,
        }
    }

    /// Reads what is there and queues the calls in it. `hung_up`: the kernel reported the end of
    /// the peer, so that a short read does not mean that nothing follows.
    pub(super) fn hear(&mut self, buffer: &mut [u8], hung_up: bool) -> Heard {
        let mut budget = READ_BYTES_PER_TURN;
        loop {
            if !self.understand() {
                return Heard::NotAll;
            }
            if budget == 0 {
                return Heard::NotAll;
            }
            let fds_before = self.fds.len();
            let n =
                match sys::fds::receive(self.socket.as_fd(), buffer, &mut self.fds, MSG_DONTWAIT) {
                    Ok(0) => return Heard::Closed,
                    Ok(n) => n,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Heard::All,
                    Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                        return Heard::ClosedUnread;
                    }
                    Err(_) => return Heard::Closed,
                };
            budget = budget.saturating_sub(n);
            if self.is_deaf() {
                self.fds.clear();
                continue;
            }
            self.decoder.feed(&buffer[..n]);
            // A read ends at a message with descriptors, full or not.
            if n < buffer.len() && !hung_up && self.fds.len() == fds_before {
                return if self.understand() { Heard::All } else { Heard::NotAll };
            }
        }
    }

    /// Queues the calls that are there whole; false if there are more than may be queued now.
    fn understand(&mut self) -> bool {
        while !self.is_deaf() {
            let full = self.calls.len() >= CALLS_AHEAD_MAX;
            if full && self.doing == Doing::Nothing {
                // Those that are queued are about to be served.
                return !self.decoder.has_message();
            }
            let call = match self.decoder.next_message() {
                Ok(None) => return true,
                Ok(Some(_)) if self.turned_away => {
                    self.give_up(&too_many_connections());
                    return true;
                }
                Ok(Some(_)) if full => {
                    let message = format!("more than {CALLS_AHEAD_MAX} calls were sent ahead");
                    self.give_up(&Failure::new(ErrorName::TooMuch, message));
                    return true;
                }
                Ok(Some(message)) => call::read(message, &mut self.fds),
                Err(error) => Err(error),
            };
            match call {
                Ok(call) => self.calls.push_back(call),
                Err(error) => self.break_off(&error),
            }
        }
        true
    }

    /// Nothing that comes after this can be understood. What came before is still answered.
    fn break_off(&mut self, error: &FrameError) {
        let name = match error {
            FrameError::TooLarge(_) => ErrorName::TooMuch,
            FrameError::Malformed(_) => ErrorName::Malformed,
        };
        self.calls.push_back(Call::last_words(Failure::new(name, error.to_string())));
        self.broke_off = true;
    }

    /// Whether what is read is thrown away; it is read only to see the end of the connection.
    fn is_deaf(&self) -> bool {
        self.closing || self.broke_off
    }

    /// Says why, and closes the connection once that is written.
    pub(super) fn give_up(&mut self, failure: &Failure) {
        self.mute = false;
        self.fail(failure);
        self.closing = true;
        self.calls.clear();
        self.fds.clear();
    }

    /// Whether there is a call that can be served now.
    pub(super) fn is_ready(&self) -> bool {
        self.doing == Doing::Nothing && !self.calls.is_empty() && !self.closing
    }

    /// Queues a reply; `continues` if more follow.
    pub(super) fn reply<T: Serialize>(&mut self, parameters: &T, continues: bool) {
        self.put(&Reply { parameters, continues, error: None });
    }

    /// Queues a reply that descriptors come with.
    pub(super) fn reply_with<T: Serialize>(&mut self, parameters: &T, fds: Vec<OwnedFd>) {
        let at = self.output.bytes.len();
        self.reply(parameters, false);
        if !fds.is_empty() {
            self.output.fds.push((at, fds));
        }
    }

    /// Queues an error.
    pub(super) fn fail(&mut self, failure: &Failure) {
        let error = Some(failure.name.qualified());
        self.put(&Reply { parameters: failure, continues: false, error });
    }

    /// Queues an error that varlink defines.
    pub(super) fn fail_service(&mut self, parameters: &ServiceError) {
        let error = Some(parameters.qualified());
        self.put(&Reply { parameters, continues: false, error });
    }

    /// A reply as it is sent, for one that is made of what the daemon has and not of a copy of it.
    /// Nothing if it has no JSON form.
    pub(super) fn written<T: Serialize>(parameters: &T, continues: bool) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        append(&Reply { parameters, continues, error: None }, &mut bytes).then_some(bytes)
    }

    /// Queues a reply that was written elsewhere.
    pub(super) fn put_written(&mut self, reply: Option<Vec<u8>>) {
        if !self.takes_words() {
            return;
        }
        match reply {
            Some(bytes) if self.output.bytes.is_empty() => self.output.bytes = bytes,
            Some(bytes) => self.output.bytes.extend_from_slice(&bytes),
            None => self.closing = true,
        }
    }

    fn put<T: Serialize>(&mut self, reply: &Reply<&T>) {
        if self.takes_words() && !append(reply, &mut self.output.bytes) {
            self.closing = true;
        }
    }

    /// Whether more may be queued.
    fn takes_words(&mut self) -> bool {
        if self.output.unsent() > OUTPUT_BYTES_MAX {
            // The peer does not read. What it did not take is dropped with it.
            self.take_back_words();
            return false;
        }
        !(self.output.stuck || self.closing || self.mute)
    }

    /// Drops what was not written: the peer must not learn of it. The connection is closed.
    pub(super) fn take_back_words(&mut self) {
        self.output.drop_all();
        self.closing = true;
    }

    /// Gives back memory that is of no use while a request waits.
    pub(super) fn save_memory(&mut self) {
        self.calls.shrink_to_fit();
        self.fds.shrink_to_fit();
        self.decoder.save_memory();
        self.output.save_memory();
    }

    /// Whether it watches the status.
    pub(super) fn watches(&self) -> bool {
        matches!(self.doing, Doing::Watches(_))
    }

    /// Whether nothing in the table depends on it.
    pub(super) fn holds_nothing(&self) -> bool {
        let idle = matches!(self.doing, Doing::Nothing | Doing::Watches(_));
        idle && self.untold.is_none() && self.provisional.is_empty()
    }

    /// Whether everything was written.
    pub(super) fn is_flushed(&self) -> bool {
        self.output.unsent() == 0
    }

    /// Writes what the peer takes now.
    ///
    /// # Errors
    /// The connection is of no more use.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let written = self.output.write(self.socket.as_fd());
        if matches!(self.doing, Doing::Waits(_)) {
            // The next reply may be hours away, and thousands wait.
            self.output.save_memory();
        }
        written
    }
}

fn append<T: Serialize>(reply: &Reply<&T>, out: &mut Vec<u8>) -> bool {
    let appended = frame::append(reply, out);
    if let Err(error) = &appended {
        tracing::error!(%error, "a reply has no JSON form");
    }
    appended.is_ok()
}

/// What one is told who comes when there are too many.
pub(super) fn too_many_connections() -> Failure {
    Failure::new(ErrorName::TooManyConnections, "the daemon has as many connections as it can take")
        .hint("try again later, or raise `connections` in the configuration or the limit of open files")
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[derive(Serialize)]
struct Reply<T> {
    parameters: T,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    continues: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}
