//! A blocking client. No async runtime: `canal run` must start fast.
//!
//! Invariant: no call hangs because of a daemon that is stopped, dead or replaced. Every wait has
//! an end, and what must not be done twice is not asked twice.
//!
//! A program holds a slot for as long as its process lives, or until it gives it back:
//!
//! ```
//! use canal::client::{Client, Start, tag};
//! use canal::protocol::place::Place;
//! use canal::protocol::{Acquire, OnLost, Release, StatusQuery, Stop, WireItem};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let socket = dir.path().join("canal.sock");
//! # let uid = nix::unistd::geteuid().as_raw();
//! # // A daemon of the example's own, in place of the one that the client would start.
//! # let options = canal::daemon::Options {
//! #     place: Place::find(Some(&socket), uid)?,
//! #     on_demand: false,
//! #     discard_journal: false,
//! #     verbose: 0,
//! #     idle_exit_s: None,
//! #     engine: None,
//! #     engine_ttl_ms: None,
//! #     host: None,
//! #     without_engine: false,
//! #     replaces: None,
//! #     watcher: None,
//! # };
//! # let daemon = std::thread::spawn(move || canal::daemon::run(&options));
//! # while std::os::unix::net::UnixStream::connect(&socket).is_err() {
//! #     assert!(!daemon.is_finished());
//! #     std::thread::sleep(std::time::Duration::from_millis(5));
//! # }
//! // `None` instead of the socket finds the user's daemon, or the machine's.
//! let place = Place::find(Some(&socket), uid)?;
//! let mut client = Client::connect(&place, Start::IfNeeded)?;
//!
//! // One of the two GPUs, and at most a minute of waiting for it.
//! let item = WireItem { key: "gpu".into(), slots: Some(2), ..WireItem::default() };
//! let request = Acquire {
//!     tag: tag()?,
//!     items: vec![item],
//!     wait_ms: Some(60_000),
//!     priority: 0,
//!     command: "training".into(),
//!     owner_fd: None,
//!     with_children: false,
//!     session: None,
//!     frame: None,
//!     lease: None,
//!     wrapper: None,
//!     on_lost: OnLost::Kill,
//! };
//! let acquired = client.acquire(&request, None, &mut |progress| {
//!     if let Some(progress) = progress {
//!         eprintln!("number {} in the queue: {}", progress.position, progress.reason);
//!     }
//!     None
//! })?;
//! let gpu = acquired.grant.keys[0].slots[0].slot;
//! assert_eq!(gpu, 0);
//!
//! // Who else has one?
//! let status = client.status(&StatusQuery { key: Some("gpu".into()), names_max: None })?;
//! assert_eq!((status.keys[0].held, status.keys[0].capacity), (1, Some(2)));
//!
//! client.release(&Release { key: Some("gpu".into()), ..Release::default() }, None)?;
//! # client.stop(&Stop {})?;
//! # daemon.join().map_err(|_| "the daemon panicked")??;
//! # Ok(())
//! # }
//! ```

use crate::protocol::place::Place;
use crate::protocol::{Handle, Tag};

mod calls;
mod connection;
mod error;
mod options;
mod start_daemon;

#[cfg(test)]
mod tests;

pub use calls::acquire::Acquired;
pub use calls::watch::Next;
pub use error::ClientError;
pub use options::{Options, Start};
pub use start_daemon::program::{OWN, is_on_demand_daemon};

use connection::open;
use connection::stream::Connection;

/// A connection to the daemon of a place.
#[derive(Debug)]
pub struct Client {
    place: Place,
    options: Options,
    /// `None` after it was lost; the next call makes another.
    connection: Option<Connection>,
}

/// A new random name for a request.
///
/// # Errors
/// The system has no randomness to give.
pub fn tag() -> Result<Tag, ClientError> {
    let mut tag = [0; 16];
    getrandom::fill(&mut tag).map_err(std::io::Error::from)?;
    Ok(Tag(u128::from_ne_bytes(tag)))
}

/// A new random secret for a lease.
///
/// # Errors
/// The system has no randomness to give.
pub fn handle() -> Result<Handle, ClientError> {
    tag().map(|Tag(bits)| Handle::new(bits))
}

impl Client {
    /// Connects, starting a daemon if need be.
    ///
    /// # Errors
    /// None runs and none may or can be started, or its directory cannot be trusted.
    pub fn connect(place: &Place, options: impl Into<Options>) -> Result<Self, ClientError> {
        let options = options.into();
        let connection = Some(open::connect_first(place, &options)?);
        Ok(Self { place: place.clone(), options, connection })
    }

    /// The connection, or a new one if there is none. The caller puts it back if it can be used
    /// again.
    fn take_connection(&mut self) -> Result<Connection, ClientError> {
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => open::connect_again(&self.place, &self.options),
        }
    }
}
