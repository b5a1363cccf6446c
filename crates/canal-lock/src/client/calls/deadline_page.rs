//! Receives the descriptors that come with replies, and the deadline page among them.

use std::os::fd::OwnedFd;

use canal_protocol::place::Place;
use canal_protocol::{DeadlinePageFound, DeadlinePageQuery, ErrorName, Tag};
use canal_sys::deadline::{Reader, Why};

use crate::client::connection::silence::Limits;
use crate::client::connection::stream::{Connection, Replies, parameters};
use crate::client::error::Broken;
use crate::client::{Client, ClientError, Options, Result};

/// The descriptors that came with a reply. Each can be taken once.
pub(crate) struct Received(Vec<Option<OwnedFd>>);

impl Received {
    pub(crate) fn of(connection: &mut Connection) -> Self {
        Self(connection.take_received().into_iter().map(Some).collect())
    }

    pub(crate) fn take(&mut self, index: u32) -> Result<OwnedFd> {
        let place = usize::try_from(index).ok().and_then(|index| self.0.get_mut(index));
        place.and_then(Option::take).ok_or_else(|| {
            let text = "the reply names a descriptor that did not come with it";
            ClientError::Protocol(text.to_owned())
        })
    }

    /// The deadline page made of the descriptors with these indices.
    pub(crate) fn page(&mut self, page: u32, line: u32) -> Result<Reader> {
        let (page, line) = (self.take(page)?, self.take(line)?);
        Reader::open(page, line).map_err(|error| ClientError::Protocol(error.to_string()))
    }
}

impl Client {
    /// Asks for the deadline page of a held request. The client sends this call once, whatever its
    /// outcome.
    ///
    /// # Errors
    /// [`ErrorName::NotHeld`](canal_protocol::ErrorName::NotHeld) if this daemon does not know the
    /// hold (yet), [`ErrorName::Unsupported`](canal_protocol::ErrorName::Unsupported) if it has no
    /// engine.
    pub fn page(&mut self, query: &DeadlinePageQuery) -> Result<Reader> {
        match self.page_once(query) {
            Ok(page) => Ok(page),
            Err(Broken::Failed(error)) => Err(error),
            Err(Broken::Disconnected(_)) => Err(ClientError::Gone),
        }
    }

    fn page_once(&mut self, query: &DeadlinePageQuery) -> Result<Reader, Broken> {
        let limits = Limits::from(&self.options);
        let mut connection = self.take_connection()?;
        connection.send("DeadlinePage", query, Replies::One, None, limits)?;
        let found: DeadlinePageFound = parameters(connection.reply(limits)?)?;
        let page = Received::of(&mut connection).page(found.deadline_fd, found.liveness_fd)?;
        self.connection = Some(connection);
        Ok(page)
    }
}

/// What happened to a hold whose deadline page has lost its writer.
#[derive(Debug)]
pub enum Fate {
    /// The present daemon has taken it over, and writes this page.
    Held(Reader),
    /// It is lost.
    Lost(Why),
}

impl Fate {
    /// Asks the present daemon of a place what happened to a request that was granted with this
    /// token. `None` if no daemon knows yet.
    #[must_use]
    pub fn ask(place: &Place, options: Options, tag: Tag, token: u64) -> Option<Self> {
        let query = DeadlinePageQuery { tag, token: Some(token) };
        match Client::connect(place, options).ok()?.page(&query) {
            Ok(page) => Some(Self::Held(page)),
            Err(ClientError::Failure(failure)) if failure.name == ErrorName::LeaseLost => {
                Some(Self::Lost(Why::of_word(failure.reason.as_deref().unwrap_or_default())))
            }
            Err(_) => None,
        }
    }
}
