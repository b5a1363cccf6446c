//! Writing a connection: replies and errors, as far as the client takes them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use serde::Serialize;

use crate::daemon::limits::OUTPUT_BYTES_MAX;
use crate::daemon::net::connection::{CallState, Connection};
use crate::protocol::service::ServiceError;
use crate::protocol::{Failure, frame};

impl Connection {
    /// Queues a reply; `continues` if more follow.
    pub(crate) fn reply<T: Serialize>(&mut self, parameters: &T, continues: bool) {
        self.put(&Reply { parameters, continues, error: None });
    }

    /// Queues a reply with descriptors.
    pub(crate) fn reply_with<T: Serialize>(&mut self, parameters: &T, fds: Vec<OwnedFd>) {
        let reply = Reply { parameters, continues: false, error: None };
        self.unanswered = false;
        if self.takes_words() && !self.output.append_with(fds, |out| append(&reply, out)) {
            self.closing = true;
        }
    }

    /// Queues an error.
    pub(crate) fn fail(&mut self, failure: &Failure) {
        let error = Some(failure.name.qualified());
        self.put(&Reply { parameters: failure, continues: false, error });
    }

    /// Queues an error that varlink defines.
    pub(crate) fn fail_service(&mut self, parameters: &ServiceError) {
        let error = Some(parameters.qualified());
        self.put(&Reply { parameters, continues: false, error });
    }

    /// A reply as it is sent. Its parameters may borrow from the daemon's state, so that no copy is
    /// made. `None` if it has no JSON form.
    pub(crate) fn written<T: Serialize>(parameters: &T, continues: bool) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        append(&Reply { parameters, continues, error: None }, &mut bytes).then_some(bytes)
    }

    /// Queues a reply that was written elsewhere; `continues` if more follow.
    pub(crate) fn put_written(&mut self, reply: Option<Vec<u8>>, continues: bool) {
        self.unanswered &= continues;
        if !self.takes_words() {
            return;
        }
        match reply {
            Some(message) => self.output.put(message),
            None => self.closing = true,
        }
    }

    fn put<T: Serialize>(&mut self, reply: &Reply<&T>) {
        self.unanswered &= reply.continues;
        if self.takes_words() && !self.output.append(|out| append(reply, out)) {
            self.closing = true;
        }
    }

    /// Whether more may be queued.
    fn takes_words(&mut self) -> bool {
        self.wordless_since = None;
        if self.output.unsent() > OUTPUT_BYTES_MAX {
            // The client does not read. What it did not take is dropped.
            self.discard_output();
            return false;
        }
        !(self.output.stuck || self.closing || self.oneway)
    }

    /// Drops what was not written: the client must not learn of it. The connection is closed.
    pub(crate) fn discard_output(&mut self) {
        self.output.drop_all();
        self.closing = true;
    }

    /// How many bytes the client has not taken yet.
    pub(crate) fn unsent(&self) -> usize {
        self.output.unsent()
    }

    /// Whether everything was written.
    pub(crate) fn is_flushed(&self) -> bool {
        self.output.unsent() == 0
    }

    /// Writes what the client takes now.
    ///
    /// # Errors
    /// The connection cannot be used any more.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let written = self.output.write(self.socket.as_fd());
        if matches!(self.doing, CallState::Waits(_)) {
            // The next reply may be hours away, and thousands of clients wait.
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

#[derive(Serialize)]
struct Reply<T> {
    parameters: T,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    continues: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}
