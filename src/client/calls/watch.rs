//! Watching the state of the locks.

use std::time::{Duration, Instant};

use crate::protocol::{Status, StatusQuery};

use super::single_reply::Backoff;
use crate::client::connection::silence::Limits;
use crate::client::connection::stream::{Connection, Replies, Reply, parameters, reply};
use crate::client::error::Broken;
use crate::client::{Client, ClientError};

/// When the watcher's callback is called next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Never: the watch is over.
    Never,
    /// When something has changed.
    AtChange,
    /// The same, and after this time if nothing has changed by then.
    After(Duration),
}

impl Next {
    /// When that is if nothing changes; `None` if only a change counts.
    fn at(self) -> Option<Instant> {
        match self {
            Self::After(time) => Instant::now().checked_add(time),
            Self::Never | Self::AtChange => None,
        }
    }
}

impl Client {
    /// Calls `each` with the state of the locks, now and after each change, and with `None` when a
    /// time is over that it asked for. In between the client sleeps. Goes on with the next daemon
    /// if this one goes away.
    ///
    /// # Errors
    /// The first state did not come, or no daemon follows.
    pub fn watch(
        &mut self,
        query: &StatusQuery,
        each: &mut dyn FnMut(Option<Status>) -> Next,
    ) -> Result<(), ClientError> {
        let mut pauses = Backoff::new();
        loop {
            let told = &mut false;
            match self.watch_once(query, each, told) {
                Ok(()) => return Ok(()),
                Err(Broken::Failed(error)) => return Err(error),
                Err(Broken::Disconnected(_)) => {}
            }
            if *told {
                pauses = Backoff::new();
            }
            pauses.pause();
        }
    }

    fn watch_once(
        &mut self,
        query: &StatusQuery,
        each: &mut dyn FnMut(Option<Status>) -> Next,
        told: &mut bool,
    ) -> Result<(), Broken> {
        let limits = Limits::from(&self.options);
        let mut connection = self.take_connection()?;
        connection.send("Status", query, Replies::More, None, limits)?;
        let mut reply = connection.reply(limits)?;
        loop {
            let last = !reply.continues;
            let mut next = each(Some(parameters(reply)?));
            // The connection is not kept: the daemon would go on to send.
            if last {
                return Ok(());
            }
            *told = true;
            reply = loop {
                if next == Next::Never {
                    return Ok(());
                }
                match reply_until(&mut connection, next.at())? {
                    Some(reply) => break reply,
                    None => next = each(None),
                }
            };
        }
    }
}

/// The next reply, if it comes until then; without a time it is waited for.
fn reply_until(
    connection: &mut Connection,
    until: Option<Instant>,
) -> Result<Option<Reply>, Broken> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        match connection.message_within(left.unwrap_or(Duration::MAX))? {
            Ok(message) => return Ok(Some(reply(&message)?)),
            Err(_) if left.is_some_and(|left| left.is_zero()) => return Ok(None),
            Err(_) => {}
        }
    }
}
