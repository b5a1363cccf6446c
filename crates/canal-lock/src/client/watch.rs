//! Watches the state of the locks, or the leader of a key.

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use canal_protocol::{ErrorName, Leader, LeaderQuery, Status, StatusQuery, frame};

use super::calls::{Backoff, Client};
use super::connection::stream::{Connection, Read, Replies, parameters};
use super::error::{ClientError, Result};

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
    /// Whether the last look lost the connection. The next one continues at the next daemon.
    pub is_lost: bool,
    /// Whether the daemon has sent its last state.
    pub over: bool,
    state: PhantomData<fn() -> S>,
}

impl Watch {
    /// A watch of the state of the locks that has not yet sent its call.
    pub fn new(query: StatusQuery) -> Self {
        Self::calling("Status", query)
    }
}

impl Watch<LeaderQuery, Leader> {
    /// A watch of the leader of a key that has not yet sent its call. After each restart of the
    /// daemon, it reports the state at that time, even if that equals the previous one.
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
            let state = self.look(client, until)?;
            if !self.is_lost {
                return Ok(state);
            }
        }
    }

    /// Like [`Self::next`], but also returns `None` when the daemon goes away, which sets
    /// [`Self::is_lost`].
    ///
    /// # Errors
    /// The same as for [`Self::next`].
    pub fn look(&mut self, client: &mut Client, until: Option<Instant>) -> Result<Option<S>> {
        if std::mem::take(&mut self.is_lost) {
            self.pauses.pause();
        }
        let state = self.next_once(client, until);
        // Whether the next daemon, or the same one later, may send the next state.
        self.is_lost = match &state {
            Err(ClientError::Gone(_)) => true,
            Err(ClientError::Failure(it)) => self.has_begun && it.name == ErrorName::EngineAway,
            _ => false,
        };
        if !self.is_lost {
            return state;
        }
        self.connection = None;
        Ok(None)
    }

    fn next_once(&mut self, client: &mut Client, until: Option<Instant>) -> Result<Option<S>> {
        if self.over {
            return Ok(None);
        }
        let reply = match &mut self.connection {
            // Without a time, waits until a reply comes.
            Some(connection) => loop {
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                match connection.read(left.unwrap_or(Duration::MAX), None)? {
                    Read::Message(message) => break frame::parse(&message)?,
                    _ if left.is_some_and(|left| left.is_zero()) => return Ok(None),
                    Read::Part | Read::Nothing(_) => {}
                }
            },
            // The watch takes the connection, because the daemon keeps sending over it.
            None => {
                let limits = client.options.limits;
                let mut connection = client.take_connection()?;
                connection.send(self.method, &self.query, Replies::More, None, limits)?;
                let reply = connection.reply(limits)?;
                client.starts.daemon_answered();
                self.connection = Some(connection);
                reply
            }
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
}
