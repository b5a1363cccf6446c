//! Watches the state of the locks, or the leader of a key.

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use canal_protocol::{ErrorName, Leader, LeaderQuery, Status, StatusQuery};

use super::single_reply::Backoff;
use crate::client::connection::silence::Limits;
use crate::client::connection::stream::{Connection, Replies, Reply, parameters, reply};
use crate::client::error::Broken;
use crate::client::{Client, ClientError, Result};

/// When to call the watcher's callback next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Never: the watch is over.
    Never,
    /// When something changes.
    AtChange,
    /// When something changes, or after this time at the latest.
    After(Duration),
}

impl Next {
    /// When to call if nothing changes; `None` to wait for a change.
    fn at(self) -> Option<Instant> {
        match self {
            Self::After(time) => Instant::now().checked_add(time),
            Self::Never | Self::AtChange => None,
        }
    }
}

impl Client {
    /// Calls `each` with the state of the locks, now and after each change, and with `None` when a
    /// time that it asked for has passed. In between, the client sleeps. If the daemon goes away,
    /// the watch continues at the next one.
    ///
    /// # Errors
    /// The first state did not come, or no other daemon followed.
    pub fn watch(
        &mut self,
        query: &StatusQuery,
        each: &mut dyn FnMut(Option<Status>) -> Next,
    ) -> Result<()> {
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

/// The result of one look at a watch.
#[derive(Debug)]
pub enum Watched<S> {
    /// The next state.
    State(S),
    /// Nothing changed within the given time, or the watch is over.
    Nothing,
    /// The daemon went away. The next look continues at the next daemon.
    Lost,
}

/// A watch of the state of the locks, or of whatever a query `Q` asks for: one state `S` after the
/// other.
#[derive(Debug)]
pub struct Watch<Q = StatusQuery, S = Status> {
    method: &'static str,
    query: Q,
    /// `None` before the first call, and after the connection was lost.
    connection: Option<Connection>,
    pauses: Backoff,
    /// Whether a state has arrived.
    has_begun: bool,
    /// Whether the last look lost the connection.
    is_lost: bool,
    /// Whether the daemon has sent its last state.
    over: bool,
    state: PhantomData<fn() -> S>,
}

impl Watch {
    /// A watch of the state of the locks that has not yet sent its call.
    #[must_use]
    pub fn new(query: StatusQuery) -> Self {
        Self::calling("Status", query)
    }
}

impl Watch<LeaderQuery, Leader> {
    /// A watch of the leader of a key that has not yet sent its call. After each restart of the
    /// daemon, it reports the state at that time, even if that equals the previous one.
    #[must_use]
    pub fn of_leader(query: LeaderQuery) -> Self {
        Self::calling("Leader", query)
    }
}

impl<Q: Serialize, S: DeserializeOwned> Watch<Q, S> {
    fn calling(method: &'static str, query: Q) -> Self {
        let (connection, pauses, state) = (None, Backoff::new(), PhantomData);
        let (has_begun, is_lost, over) = (false, false, false);
        Self { method, query, connection, pauses, has_begun, is_lost, over, state }
    }

    /// Whether the daemon sends no further state.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Returns the first state, and after that the next one. Returns `None` if nothing changes in
    /// the given time, or if the watch is over. Without a time, the caller sleeps until something
    /// changes. If the daemon goes away, the watch continues at the next one, and waits while that
    /// one cannot reach its engine.
    ///
    /// # Errors
    /// The first state did not come, no other daemon followed, or the daemon ended the watch with
    /// an error.
    pub fn next(&mut self, client: &mut Client, until: Option<Instant>) -> Result<Option<S>> {
        loop {
            match self.look(client, until)? {
                Watched::State(state) => return Ok(Some(state)),
                Watched::Nothing => return Ok(None),
                Watched::Lost => {}
            }
        }
    }

    /// Like [`Self::next`], but also returns when the daemon goes away.
    ///
    /// # Errors
    /// The same as for [`Self::next`].
    pub fn look(&mut self, client: &mut Client, until: Option<Instant>) -> Result<Watched<S>> {
        if std::mem::take(&mut self.is_lost) {
            self.pauses.pause();
        }
        match self.next_once(client, until) {
            Ok(Some(state)) => Ok(Watched::State(state)),
            Ok(None) => Ok(Watched::Nothing),
            Err(Broken::Failed(error)) if !self.has_begun || !is_engine_away(&error) => Err(error),
            Err(_) => {
                (self.connection, self.is_lost) = (None, true);
                Ok(Watched::Lost)
            }
        }
    }

    fn next_once(
        &mut self,
        client: &mut Client,
        until: Option<Instant>,
    ) -> Result<Option<S>, Broken> {
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
        let state = parameters(reply)?;
        (self.over, self.has_begun) = (last, true);
        if last {
            self.connection = None;
        } else {
            self.pauses = Backoff::new();
        }
        Ok(Some(state))
    }

    /// Sends the call and takes the connection for this watch, because the daemon keeps sending
    /// over it.
    fn begin(&mut self, client: &mut Client) -> Result<Reply, Broken> {
        let limits = Limits::from(&client.options);
        let mut connection = client.take_connection()?;
        connection.send(self.method, &self.query, Replies::More, None, limits)?;
        let reply = connection.reply(limits)?;
        client.starts.daemon_answered();
        self.connection = Some(connection);
        Ok(reply)
    }
}

/// Whether the daemon cannot reach its engine at present.
fn is_engine_away(error: &ClientError) -> bool {
    matches!(error, ClientError::Failure(failure) if failure.name == ErrorName::EngineAway)
}

/// The next reply, if it comes by then. Without a time, waits until it comes.
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
