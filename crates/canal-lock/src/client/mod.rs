//! A blocking client, without an async runtime because `canal run` must start fast.
//!
//! Other programs use it through [`Lock`](crate::Lock) and [`Client`](crate::Client) of the crate.
//!
//! Invariant: no call hangs because a daemon is stopped, dead or replaced. Every wait is bounded,
//! and the client never repeats a call that must not take effect twice.

use canal_protocol::place::Place;
use canal_protocol::{Handle, Tag};
use canal_sys::terminal::audience::Audience;

pub mod bridge;
mod calls;
pub mod channel;
mod connection;
pub mod deadlock_watcher;
pub mod environment;
mod error;
pub mod hold_monitor;
pub mod nodes;
mod options;
mod own_daemon;
mod start_daemon;

#[cfg(test)]
mod tests;

pub use calls::acquire::{Acquired, JobserverEnds};
pub use calls::deadline_page::Fate;
pub use calls::watch::{Next, Watch, Watched};
pub use error::ClientError;
pub(crate) use error::Result;
pub use options::{Options, Start};
pub use start_daemon::attempt::replace_daemon;
pub use start_daemon::program::find as find_program;
pub use start_daemon::program::{OWN, is_on_demand_daemon, own_program};
pub use start_daemon::service_manager::{ServiceManager, is_from_outside};
pub use start_daemon::starts::last_line_of_log;

use connection::stream::Connection;
use start_daemon::open;
use start_daemon::starts::Starts;

/// A connection to the daemon of a place.
#[derive(Debug)]
pub struct Client {
    place: Place,
    options: Options,
    /// `None` after the connection was lost; the next call opens another.
    connection: Option<Connection>,
    /// Whether this client started the daemon when it first connected.
    has_started_daemon: bool,
    starts: Starts,
    /// Receives a line for each call and answer.
    trace: Option<fn(&str)>,
    /// The readers of the output. When they are gone, the client gives up a waiting request.
    audience: Option<Audience>,
}

/// A new random name for a request.
///
/// # Errors
/// The system cannot provide random bytes.
pub fn tag() -> Result<Tag> {
    let mut tag = [0; 16];
    getrandom::fill(&mut tag).map_err(std::io::Error::from)?;
    Ok(Tag(u128::from_ne_bytes(tag)))
}

/// A new random secret for a lease.
///
/// # Errors
/// The system cannot provide random bytes.
pub fn handle() -> Result<Handle> {
    tag().map(|Tag(bits)| Handle::new(bits))
}

impl Client {
    /// Connects, and starts a daemon if necessary.
    ///
    /// # Errors
    /// No daemon runs and none may or can be started, or its directory cannot be trusted.
    pub fn connect(place: &Place, options: impl Into<Options>) -> Result<Self> {
        let options = options.into();
        let mut starts = Starts::default();
        let opened = open::connect_first(place, &options, &mut starts)?;
        let (connection, has_started_daemon) = (Some(opened.connection), opened.has_started);
        let (place, trace, audience) = (place.clone(), None, None);
        Ok(Self { place, options, connection, has_started_daemon, starts, trace, audience })
    }

    /// From now on, calls `say` with a line for the user for each call and for each answer.
    pub fn trace_to(&mut self, say: fn(&str)) {
        self.trace = Some(say);
    }

    /// From now on, gives up a waiting request when standard output and standard error have no
    /// reader left.
    pub fn give_up_unread(&mut self) {
        self.audience = Some(Audience::new());
    }

    fn trace(&self, line: impl FnOnce() -> String) {
        if let Some(say) = self.trace {
            say(&line());
        }
    }

    /// Whether this client started the daemon when it connected.
    #[must_use]
    pub fn has_started_daemon(&self) -> bool {
        self.has_started_daemon
    }

    /// The connection, or a new one if there is none. The caller puts it back if it remains usable.
    fn take_connection(&mut self) -> Result<Connection> {
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => {
                self.trace(|| "connecting again".to_owned());
                open::connect_again(&self.place, &self.options, &mut self.starts)
            }
        }
    }
}
