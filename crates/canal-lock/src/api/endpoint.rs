//! Chooses the daemon that a lock or a client uses.

use std::path::PathBuf;

use super::error::{Error, ErrorKind};
use crate::client::deadlock_watcher::DeadlockWatcher;
use crate::client::{Client, Options, Start, environment, find_program};
use canal_protocol::Tag;
use canal_protocol::place::{MachineUid, Place, Rule};

/// The daemon to use, and whether the library may start it.
///
/// By default, this is the daemon that the `canal` command uses: the one at the socket named by the
/// environment variable `CANAL_SOCKET`, else the daemon of the machine (`/run/canal`), else the
/// user's own (`/tmp/canal-UID`). If the user's own daemon does not run, the library starts it with
/// the first `canal` program in `PATH`.
///
/// ```
/// use canal_lock::{Endpoint, Lock};
///
/// # fn main() -> Result<(), canal_lock::Error> {
/// # let daemon = canal::testing::Daemon::start()?;
/// # let socket = daemon.socket();
/// let endpoint = Endpoint::at(socket).no_start();
/// let guard = Lock::new("nightly").endpoint(&endpoint).acquire()?;
/// # drop(guard);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    socket: Option<PathBuf>,
    never_starts: bool,
    program: Option<PathBuf>,
}

impl Endpoint {
    /// Chooses the daemon that the `canal` command uses.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses the daemon that listens at this socket. Its journal, state and configuration are in
    /// the same directory.
    #[must_use]
    pub fn at(socket: impl Into<PathBuf>) -> Self {
        Self { socket: Some(socket.into()), ..Self::default() }
    }

    /// Never starts a daemon: if none runs, calls fail.
    #[must_use]
    pub fn no_start(mut self) -> Self {
        self.never_starts = true;
        self
    }

    /// Starts this program, instead of the `canal` in `PATH`, when a daemon must be started.
    #[must_use]
    pub fn program(mut self, canal: impl Into<PathBuf>) -> Self {
        self.program = Some(canal.into());
        self
    }

    pub(super) fn place(&self) -> Result<Place, Error> {
        let variable = std::env::var_os(environment::SOCKET).map(PathBuf::from);
        let given = self.socket.as_deref().or(variable.as_deref());
        Place::find(given, MachineUid::own())
            .map_err(|message| Error::new(ErrorKind::Invalid, message))
    }

    pub(super) fn options(&self) -> Options {
        let start = if self.never_starts { Start::Never } else { Start::IfNeeded };
        Options { program: self.program.clone(), ..Options::from(start) }
    }

    /// Starts to look for deadlocks across nodes on behalf of a request at this daemon. Returns
    /// `None` if that is impossible.
    pub(super) fn watch_for_deadlocks(&self, place: &Place, tag: Tag) -> Option<DeadlockWatcher> {
        let program = find_program(self.program.as_deref()).ok()?;
        let mut args = Vec::new();
        if place.rule != Rule::Shared {
            args.extend(["--socket".into(), place.socket.clone().into()]);
        }
        DeadlockWatcher::start_program(&program, &args, tag).ok()
    }

    pub(super) fn connect(&self) -> Result<Client, Error> {
        self.connect_for(None)
    }

    /// Connects for a request that waits at most this long.
    pub(super) fn connect_for(&self, wait_ms: Option<u64>) -> Result<Client, Error> {
        Ok(Client::connect(&self.place()?, self.options().of_wait(wait_ms))?)
    }
}
