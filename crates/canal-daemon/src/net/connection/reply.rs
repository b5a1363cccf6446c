//! Writes replies and errors to a connection, as far as the client reads them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use serde::Serialize;

use crate::calls::answer::{Answer, Follows, written};
use crate::calls::call::Replies;
use crate::limits::OUTPUT_BYTES_MAX;
use crate::net::call_state::CallState;
use crate::net::connection::{Closing, Connection};

impl Connection {
    /// Queues a message that precedes the final reply.
    pub(crate) fn progress<T: Serialize>(&mut self, parameters: &T) {
        if self.takes_words() {
            self.put_message(written(parameters, Follows::More), Vec::new());
        }
    }

    /// Queues a serialized report that others follow.
    pub(crate) fn progress_written(&mut self, report: Option<Vec<u8>>) {
        if self.takes_words() {
            self.put_message(report, Vec::new());
        }
    }

    /// Queues the final reply to the current call.
    pub(crate) fn answer(&mut self, answer: Answer) {
        if self.takes_words() {
            self.put_message(answer.message, answer.fds);
        }
        if answer.closes {
            self.close();
        }
    }

    fn put_message(&mut self, message: Option<Vec<u8>>, fds: Vec<OwnedFd>) {
        match message {
            Some(message) => self.output.put(message, fds),
            None => self.close(),
        }
    }

    /// Whether more may be queued.
    fn takes_words(&mut self) -> bool {
        self.wordless_since = None;
        if self.output.unsent() > OUTPUT_BYTES_MAX {
            // The client does not read, so the unread output is dropped.
            self.discard_output();
            return false;
        }
        !(self.output.stuck || self.is_closing() || self.is_oneway())
    }

    /// Whether the client expects no reply to the current call.
    pub(crate) fn is_oneway(&self) -> bool {
        self.replies == Replies::None
    }

    /// Whether the daemon serves nothing further on the connection.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing != Closing::No
    }

    /// Closes the connection as soon as the output is written.
    pub(crate) fn close(&mut self) {
        if self.closing == Closing::No {
            self.closing = Closing::OnceWritten;
        }
    }

    /// Drops the output that was not written, so that the client never receives it, and closes the
    /// connection.
    pub(crate) fn discard_output(&mut self) {
        self.output.drop_all();
        self.close();
    }

    /// How many bytes the client has not taken yet.
    pub(crate) fn unsent(&self) -> usize {
        self.output.unsent()
    }

    /// Whether everything was written.
    pub(crate) fn is_flushed(&self) -> bool {
        self.output.unsent() == 0
    }

    /// Writes as much as the client accepts now.
    ///
    /// # Errors
    /// The connection is no longer usable.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let written = self.output.write(self.socket.as_fd());
        if matches!(self.state, CallState::Waits(_)) {
            // The next reply may be hours away, and thousands of clients may wait.
            self.output.save_memory();
        }
        written
    }
}
