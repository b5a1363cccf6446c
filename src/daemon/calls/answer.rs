//! The final reply to a call, in the form in which it is sent.

use std::os::fd::OwnedFd;

use serde::Serialize;

use crate::protocol::Failure;
use crate::protocol::frame;
use crate::protocol::service::ServiceError;

/// Most replies need no more bytes.
const USUAL_BYTES: usize = 512;

/// The final reply to a call. What it says may be borrowed from the daemon's state: it is written
/// when the answer is made, so that no copy of the state is needed.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The message; `None` if it has no JSON form.
    pub(crate) message: Option<Vec<u8>>,
    pub(crate) fds: Vec<OwnedFd>,
    /// Whether the message says that more follow. Only the first report for a client that watches
    /// the status, and has closed its writing half since, says so.
    pub(crate) continues: bool,
    /// Whether the connection is closed as soon as the message is written.
    pub(crate) closes: bool,
}

impl Answer {
    /// A reply.
    pub(crate) fn reply<T: Serialize>(parameters: &T) -> Self {
        Self::with_fds(parameters, Vec::new())
    }

    /// A reply with descriptors.
    pub(crate) fn with_fds<T: Serialize>(parameters: &T, fds: Vec<OwnedFd>) -> Self {
        Self { message: written(parameters, false), fds, continues: false, closes: false }
    }

    /// A report, if it is the only one or others `continues`.
    pub(crate) fn report(message: Option<Vec<u8>>, continues: bool) -> Self {
        Self { message, fds: Vec::new(), continues, closes: false }
    }

    /// An error that varlink defines.
    pub(crate) fn service_error(error: &ServiceError) -> Self {
        Self::of(&Reply { parameters: error, continues: false, error: Some(error.qualified()) })
    }

    /// An error of this interface.
    pub(crate) fn failure(failure: &Failure) -> Self {
        let error = Some(failure.name.qualified());
        Self::of(&Reply { parameters: failure, continues: false, error })
    }

    fn of<T: Serialize>(reply: &Reply<&T>) -> Self {
        Self { message: bytes_of(reply), fds: Vec::new(), continues: false, closes: false }
    }
}

/// A reply as it is sent; `continues` if more follow. `None` if it has no JSON form.
pub(crate) fn written<T: Serialize>(parameters: &T, continues: bool) -> Option<Vec<u8>> {
    bytes_of(&Reply { parameters, continues, error: None })
}

fn bytes_of<T: Serialize>(reply: &Reply<T>) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    match frame::append(reply, &mut bytes) {
        Ok(()) => Some(bytes),
        Err(error) => {
            tracing::error!(%error, "a reply has no JSON form");
            None
        }
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
