//! A blocking client. No async runtime: `canal run` must start fast.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use crate::protocol::place::Place;
use crate::protocol::{
    Acquire, Confirm, Failure, Grant, Progress, Release, Released, Resize, Resized, Status,
    StatusQuery, Stop, Stopping,
};
use crate::sys::pidfd::Pidfd;

/// Whether a client starts a daemon if none runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It does, where the place allows it (not at `/run/canal`).
    IfNeeded,
    /// It does not.
    Never,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The daemon answered with an error.
    #[error(transparent)]
    Failure(#[from] Failure),
    /// No daemon runs, and none was to be started: where it was looked for.
    #[error("no daemon runs at {0}")]
    NoDaemon(PathBuf),
    /// A daemon was started and could not come up; its own words.
    #[error("{0}")]
    Start(String),
    /// The daemon does not answer: its pid and state letter where known.
    #[error("daemon pid {pid} (state {state}) does not answer")]
    Silent {
        /// Its process.
        pid: u32,
        /// The state letter of /proc, `?` if unknown.
        state: char,
    },
    /// The socket's place cannot be used.
    #[error("{0}")]
    Place(String),
    /// The answer is not what the protocol wants.
    #[error("the daemon's answer makes no sense: {0}")]
    Protocol(String),
    /// The system said no.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// A connection to the daemon of a place.
#[derive(Debug)]
pub struct Client {
    _place: Place,
}

/// What a request brought.
#[derive(Debug)]
pub struct Acquired {
    /// The grant.
    pub grant: Grant,
    /// The FIFO's write end that the command is to inherit (only `with_children`).
    pub children: Option<OwnedFd>,
}

impl Client {
    /// Connects, starting a daemon if need be.
    pub fn connect(place: &Place, start: Start) -> Result<Self, ClientError> {
        let _ = (place, start);
        todo!()
    }

    /// Asks, and waits as long as the request says. `progress` is called for every word from the
    /// daemon while it waits, and about once a second with `None`. If the daemon goes away
    /// meanwhile, connects anew (starting it if need be) and goes on under the same tag.
    ///
    /// `owner` is the process that shall own; without it, this process does.
    pub fn acquire(
        &mut self,
        request: &Acquire,
        owner: Option<&Pidfd>,
        progress: &mut dyn FnMut(Option<&Progress>),
    ) -> Result<Acquired, ClientError> {
        let _ = (request, owner, progress);
        todo!()
    }

    /// Confirms a provisional grant, after its owner was told.
    pub fn confirm(&mut self, confirm: &Confirm) -> Result<(), ClientError> {
        let _ = confirm;
        todo!()
    }

    /// Gives back.
    pub fn release(
        &mut self,
        release: &Release,
        owner: Option<&Pidfd>,
    ) -> Result<Released, ClientError> {
        let _ = (release, owner);
        todo!()
    }

    /// Asks for the state of the locks.
    pub fn status(&mut self, query: &StatusQuery) -> Result<Status, ClientError> {
        let _ = query;
        todo!()
    }

    /// Calls `each` with the state of the locks, now and after each change, until it returns
    /// false.
    pub fn watch(
        &mut self,
        query: &StatusQuery,
        each: &mut dyn FnMut(Status) -> bool,
    ) -> Result<(), ClientError> {
        let _ = (query, each);
        todo!()
    }

    /// Stores a view.
    pub fn resize(&mut self, resize: &Resize) -> Result<Resized, ClientError> {
        let _ = resize;
        todo!()
    }

    /// Ends the daemon and waits until it is gone.
    pub fn stop(&mut self, stop: &Stop) -> Result<Stopping, ClientError> {
        let _ = stop;
        todo!()
    }
}
