//! The final reply to a call, ready to send.

use std::os::fd::OwnedFd;

use serde::Serialize;

use canal_protocol::Failure;
use canal_protocol::frame;
use canal_protocol::service::ServiceError;

/// Most replies fit into this many bytes.
const USUAL_BYTES: usize = 512;

/// The final reply to a call. Its content may borrow from the daemon's state: the daemon serializes
/// it at once, so it needs no copy of that state.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The message; `None` if it has no JSON form.
    pub message: Option<Vec<u8>>,
    pub fds: Vec<OwnedFd>,
    /// Whether the daemon closes the connection as soon as it has written the message.
    pub closes: bool,
}

impl Answer {
    pub(crate) fn reply<T: Serialize>(parameters: &T) -> Self {
        Self::with_fds(parameters, Vec::new())
    }

    /// A reply with descriptors.
    pub(crate) fn with_fds<T: Serialize>(parameters: &T, fds: Vec<OwnedFd>) -> Self {
        Self { message: written(parameters, Follows::Nothing), fds, closes: false }
    }

    /// A serialized report.
    pub(crate) fn report(message: Option<Vec<u8>>) -> Self {
        Self { message, fds: Vec::new(), closes: false }
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
        Self::report(bytes_of(reply))
    }
}

/// What follows a reply to a call, which the reply announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follows {
    Nothing,
    /// Another reply to the same call.
    More,
}

/// Serializes a reply. `None` if it has no JSON form.
pub(crate) fn written<T: Serialize>(parameters: &T, follows: Follows) -> Option<Vec<u8>> {
    bytes_of(&Reply { parameters, continues: follows == Follows::More, error: None })
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
