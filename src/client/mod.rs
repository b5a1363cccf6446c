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

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use crate::protocol::place::Place;
use crate::protocol::{
    Confirm, Grant, GraphQuery, Handle, Release, Released, Renew, Renewed, Resize, Resized, Status,
    StatusQuery, Tag, Waits, WhyQuery,
};
use crate::sys::deadline::Reader;
use crate::sys::pidfd::Pidfd;
use crate::sys::process::state_letter;

mod acquire;
mod call;
mod connect;
mod connection;
mod error;
mod page;
mod program;
mod release;
mod silence;
mod start;
mod stop;
mod watch;

#[cfg(test)]
mod tests;

pub use error::ClientError;
pub use program::{OWN, is_on_demand_daemon};
pub use watch::Next;

use call::Repeat;
use connection::Connection;

/// Whether a client starts a daemon if none runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It does, where the place allows it (not at `/run/canal`).
    IfNeeded,
    /// It does not.
    Never,
}

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether it starts a daemon if none runs.
    pub start: Start,
    /// The program that it starts; without one, the `canal` along PATH. A program that is canal says
    /// [`OWN`].
    pub program: Option<PathBuf>,
    /// How long the daemon may take to say a word.
    pub answer: Duration,
}

impl From<Start> for Options {
    fn from(start: Start) -> Self {
        Self { start, program: None, answer: Duration::from_secs(5) }
    }
}

/// A connection to the daemon of a place.
#[derive(Debug)]
pub struct Client {
    place: Place,
    options: Options,
    /// `None` after it was lost; the next call makes another.
    connection: Option<Connection>,
}

/// What a request brought.
#[derive(Debug)]
pub struct Acquired {
    /// The grant.
    pub grant: Grant,
    /// The FIFO's write end that the command is to inherit (only `with_children`).
    pub children: Option<OwnedFd>,
    /// Until when it is sure; only of a daemon that works over an engine.
    pub page: Option<Reader>,
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
        let connection = Some(connect::connect_first(place, &options)?);
        Ok(Self { place: place.clone(), options, connection })
    }

    /// Confirms a provisional grant, after its owner was told. If the daemon goes away meanwhile,
    /// asks the next one: to confirm twice is to confirm once.
    ///
    /// # Errors
    /// [`ErrorName::UnknownTag`](crate::protocol::ErrorName::UnknownTag) if the grant was taken
    /// back.
    pub fn confirm(&mut self, confirm: &Confirm) -> Result<(), ClientError> {
        let _: serde_json::Value = self.call("Confirm", confirm, None, Repeat::Always)?;
        Ok(())
    }

    /// Gives back. `owner` is whose; without it, this process's. The message's `owner_fd` is set
    /// accordingly.
    ///
    /// # Errors
    /// Nothing of the kind is held, or it is not the caller's. [`ClientError::Gone`] if the daemon
    /// may have done it and could not say so.
    pub fn release(
        &mut self,
        release: &Release,
        owner: Option<&Pidfd>,
    ) -> Result<Released, ClientError> {
        let release = Release { owner_fd: owner.map(|_| 0), ..release.clone() };
        self.call("Release", &release, owner, Repeat::IfUndone)
    }

    /// Gives back exactly once, over any number of daemons: asks first what that is, and asks the
    /// next daemon if one goes away before it answered.
    ///
    /// # Errors
    /// As of [`Client::release`]. [`ClientError::Gone`] only if daemons go away all the time, or
    /// where one of an earlier version runs.
    pub fn release_once(
        &mut self,
        release: &Release,
        owner: Option<&Pidfd>,
    ) -> Result<Released, ClientError> {
        let release = Release { owner_fd: owner.map(|_| 0), ..release.clone() };
        release::once(self, &release, owner)
    }

    /// Lets a lease live on for its whole TTL from now.
    ///
    /// # Errors
    /// [`ErrorName::LeaseLost`](crate::protocol::ErrorName::LeaseLost) if it is no more.
    pub fn renew(&mut self, renew: &Renew) -> Result<Renewed, ClientError> {
        self.call("Renew", renew, None, Repeat::Always)
    }

    /// Asks for the state of the locks.
    ///
    /// # Errors
    /// Only those of every call.
    pub fn status(&mut self, query: &StatusQuery) -> Result<Status, ClientError> {
        self.call("Status", query, None, Repeat::Always)
    }

    /// Asks for whom a process or session waits, and on to the end of the chain.
    ///
    /// # Errors
    /// [`ErrorName::BadRequest`](crate::protocol::ErrorName::BadRequest) if it neither holds nor
    /// waits.
    pub fn why(&mut self, query: &WhyQuery) -> Result<Waits, ClientError> {
        self.call("Why", query, None, Repeat::Always)
    }

    /// Asks for everyone who waits, and for whom.
    ///
    /// # Errors
    /// Only those of every call.
    pub fn graph(&mut self, query: &GraphQuery) -> Result<Waits, ClientError> {
        self.call("Graph", query, None, Repeat::Always)
    }

    /// Stores a view.
    ///
    /// # Errors
    /// The view makes no sense, or the caller may not.
    pub fn resize(&mut self, resize: &Resize) -> Result<Resized, ClientError> {
        self.call("Resize", resize, None, Repeat::Always)
    }

    /// The connection, a new one if there is none. Whoever takes it puts it back if it can be used
    /// again.
    fn take_connection(&mut self) -> Result<Connection, ClientError> {
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => connect::connect_again(&self.place, &self.options),
        }
    }
}

/// The error of a daemon that does not answer.
fn silent(pid: Option<u32>) -> ClientError {
    let state = pid.and_then(state_letter).unwrap_or('?');
    ClientError::Silent { pid: pid.unwrap_or(0), state }
}
