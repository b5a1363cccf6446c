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
        let mut watch = Watch::new(query.clone());
        let mut next = Next::AtChange;
        loop {
            let status = watch.next(self, next.at())?;
            if status.is_none() && watch.is_over() {
                return Ok(());
            }
            next = each(status);
            if next == Next::Never {
                return Ok(());
            }
        }
    }
}

/// A watch of the state of the locks, one state after the other.
#[derive(Debug)]
pub struct Watch {
    query: StatusQuery,
    /// `None` before the first call, and after the connection was lost.
    connection: Option<Connection>,
    pauses: Backoff,
    /// Whether the daemon has sent its last state.
    over: bool,
}

impl Watch {
    /// A watch that has not asked yet.
    #[must_use]
    pub fn new(query: StatusQuery) -> Self {
        Self { query, connection: None, pauses: Backoff::new(), over: false }
    }

    /// Whether the daemon sends no further state.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// The first state, and after that the next one. `None` if nothing has changed until then, or
    /// if the watch is over. Without a time the caller sleeps until something changes. Goes on with
    /// the next daemon if this one goes away.
    ///
    /// # Errors
    /// The first state did not come, or no daemon follows.
    pub fn next(
        &mut self,
        client: &mut Client,
        until: Option<Instant>,
    ) -> Result<Option<Status>, ClientError> {
        loop {
            match self.next_once(client, until) {
                Ok(status) => return Ok(status),
                Err(Broken::Failed(error)) => return Err(error),
                Err(Broken::Disconnected(_)) => self.connection = None,
            }
            self.pauses.pause();
        }
    }

    fn next_once(
        &mut self,
        client: &mut Client,
        until: Option<Instant>,
    ) -> Result<Option<Status>, Broken> {
        if self.over {
            return Ok(None);
        }
        let reply = match &mut self.connection {
            Some(connection) => match reply_until(connection, until)? {
                Some(reply) => reply,
                None => return Ok(None),
            },
            None => self.begin(client)?,
        };
        let last = !reply.continues;
        let status = parameters(reply)?;
        self.over = last;
        if last {
            self.connection = None;
        } else {
            self.pauses = Backoff::new();
        }
        Ok(Some(status))
    }

    /// Asks, and takes the connection for this watch: the daemon goes on to send over it.
    fn begin(&mut self, client: &mut Client) -> Result<Reply, Broken> {
        let limits = Limits::from(&client.options);
        let mut connection = client.take_connection()?;
        connection.send("Status", &self.query, Replies::More, None, limits)?;
        let reply = connection.reply(limits)?;
        self.connection = Some(connection);
        Ok(reply)
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
