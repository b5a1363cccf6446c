//! Watching the state of the locks.

use std::time::Duration;

use crate::protocol::{Status, StatusQuery};

use super::call::Pauses;
use super::connection::{Heard, Replies, parameters};
use super::error::Broken;
use super::{Client, ClientError};

/// How long a single look at the socket takes at most.
const TICK: Duration = Duration::from_secs(1);

impl Client {
    /// Calls `each` with the state of the locks, now and after each change, and about once a
    /// second with `None`, until it returns false. Goes on with the next daemon if this one goes
    /// away.
    ///
    /// # Errors
    /// The first state did not come, or no daemon follows.
    pub fn watch(
        &mut self,
        query: &StatusQuery,
        each: &mut dyn FnMut(Option<Status>) -> bool,
    ) -> Result<(), ClientError> {
        let mut pauses = Pauses::new();
        loop {
            let told = &mut false;
            match self.watch_once(query, each, told) {
                Ok(()) => return Ok(()),
                Err(Broken::Failed(error)) => return Err(error),
                Err(Broken::Lost(_)) => {}
            }
            if *told {
                pauses = Pauses::new();
            }
            pauses.pause();
        }
    }

    fn watch_once(
        &mut self,
        query: &StatusQuery,
        each: &mut dyn FnMut(Option<Status>) -> bool,
        told: &mut bool,
    ) -> Result<(), Broken> {
        let answer = self.options.answer;
        let mut connection = self.take_connection()?;
        connection.send("Status", query, Replies::More, None, answer)?;
        let mut reply = connection.reply(answer)?;
        loop {
            let last = !reply.continues;
            // The connection is not kept: the daemon would go on to send.
            if !each(Some(parameters(reply)?)) || last {
                return Ok(());
            }
            *told = true;
            reply = loop {
                match connection.reply_within(TICK)? {
                    Ok(reply) => break reply,
                    Err(Heard::Nothing(_) | Heard::Part) => {
                        if !each(None) {
                            return Ok(());
                        }
                    }
                }
            };
        }
    }
}
