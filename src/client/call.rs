//! Calls with one answer.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::sys::pidfd::Pidfd;

use super::connection::{Replies, parameters};
use super::error::{Broken, Lost};
use super::{Client, ClientError};

/// Whether a call may be sent again when the connection was lost before its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Doing it twice is the same as doing it once.
    Always,
    /// Only if the daemon cannot have done it.
    IfUndone,
}

/// The pauses between attempts after the daemon went away: a daemon that ends at every call is not
/// to be started in a tight loop.
#[derive(Debug)]
pub(super) struct Pauses(Duration);

impl Pauses {
    pub(super) fn new() -> Self {
        Self(Duration::from_millis(5))
    }

    pub(super) fn pause(&mut self) {
        std::thread::sleep(self.0);
        self.0 = (self.0 * 2).min(Duration::from_secs(1));
    }
}

/// How often a call without a wait of its own is tried.
pub(super) const ATTEMPTS_MAX: u32 = 8;

impl Client {
    pub(super) fn call<P: Serialize, T: DeserializeOwned>(
        &mut self,
        method: &str,
        input: &P,
        owner: Option<&Pidfd>,
        repeat: Repeat,
    ) -> Result<T, ClientError> {
        let mut pauses = Pauses::new();
        for _ in 0..ATTEMPTS_MAX {
            let lost = match self.call_once(method, input, owner) {
                Ok(output) => return Ok(output),
                Err(Broken::Failed(error)) => return Err(error),
                Err(Broken::Lost(lost)) => lost,
            };
            if lost == Lost::Unknown && repeat == Repeat::IfUndone {
                break;
            }
            pauses.pause();
        }
        Err(ClientError::Gone)
    }

    pub(super) fn call_once<P: Serialize, T: DeserializeOwned>(
        &mut self,
        method: &str,
        input: &P,
        owner: Option<&Pidfd>,
    ) -> Result<T, Broken> {
        let answer = self.options.answer;
        let mut connection = self.take_connection()?;
        connection.send(method, input, Replies::One, owner, answer)?;
        let reply = connection.reply(answer)?;
        let output = parameters(reply);
        // A connection that failed is not used again, one that carried an error reply is.
        if !matches!(output, Err(Broken::Lost(_))) {
            self.connection = Some(connection);
        }
        output
    }
}
