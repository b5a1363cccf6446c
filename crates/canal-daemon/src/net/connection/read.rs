//! Reads a connection, and decodes its calls.

use std::io;
use std::os::fd::AsFd;

use libc::MSG_DONTWAIT;

use crate::calls::call::{self, Call};
use crate::limits::{CALLS_AHEAD_MAX, READ_BYTES_PER_TURN};
use crate::net::call_state::CallState;
use crate::net::connection::{Connection, Input};
use crate::net::connection_limits::TurnedAway;
use canal_protocol::frame::FrameError;
use canal_protocol::{ErrorName, Failure};

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadStatus {
    /// Everything available was read.
    All,
    /// There may be more data, which has to wait for the next turn.
    NotAll,
    /// There may be more data, which has to wait until an earlier call is served.
    Full,
    /// The client closed the connection, or its writing half, which counts the same.
    Closed,
    /// The client closed the connection without having read everything that was sent.
    ClosedUnread,
}

impl Connection {
    /// Reads the available data and queues the calls in it. `hung_up`: the kernel reported that the
    /// client closed its end, so a short read does not mean that nothing follows.
    pub(crate) fn read(&mut self, buffer: &mut [u8], hung_up: bool) -> ReadStatus {
        let mut budget = READ_BYTES_PER_TURN;
        loop {
            if !self.understand() {
                return self.not_all();
            }
            if budget == 0 {
                return ReadStatus::NotAll;
            }
            let fds_before = self.fds.len();
            let n = match canal_sys::fds::receive(
                self.socket.as_fd(),
                buffer,
                &mut self.fds,
                MSG_DONTWAIT,
            ) {
                Ok(0) => return ReadStatus::Closed,
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return ReadStatus::All;
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return ReadStatus::ClosedUnread;
                }
                Err(_) => return ReadStatus::Closed,
            };
            budget = budget.saturating_sub(n);
            if self.is_deaf() {
                self.fds.clear();
                continue;
            }
            self.decoder.feed(&buffer[..n]);
            // A read ends at a message with descriptors, even if the buffer is not full.
            if n < buffer.len() && !hung_up && self.fds.len() == fds_before {
                return if self.understand() { ReadStatus::All } else { self.not_all() };
            }
        }
    }

    fn not_all(&self) -> ReadStatus {
        let is_full = matches!(self.state, CallState::Report);
        if is_full { ReadStatus::Full } else { ReadStatus::NotAll }
    }

    /// Queues the complete calls. Returns false if there are more than may be queued now.
    fn understand(&mut self) -> bool {
        while !self.is_deaf() {
            let full = self.calls.len() >= CALLS_AHEAD_MAX;
            if full && matches!(self.state, CallState::Idle | CallState::Report) {
                // The queued calls are about to be served.
                return !self.decoder.has_message();
            }
            let call = match self.decoder.next_message() {
                Ok(None) => return true,
                Ok(Some(_)) if self.turned_away.is_some() => {
                    let failure = self.turned_away.map(TurnedAway::failure);
                    failure.iter().for_each(|failure| self.give_up(failure));
                    return true;
                }
                Ok(Some(_)) if full => {
                    let message =
                        format!("the client has more than {CALLS_AHEAD_MAX} unanswered calls");
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

    /// Nothing after this can be decoded. The daemon still answers the earlier calls.
    fn break_off(&mut self, error: &FrameError) {
        let name = match error {
            FrameError::TooLarge(_) => ErrorName::TooMuch,
            FrameError::Malformed(_) => ErrorName::Malformed,
        };
        self.calls.push_back(Call::last_words(Failure::new(name, error.to_string())));
        self.input = Input::BrokenOff;
    }

    /// Whether incoming data is discarded. The daemon reads it only to notice the end of the
    /// connection.
    fn is_deaf(&self) -> bool {
        self.is_closing() || self.input != Input::Open
    }
}
