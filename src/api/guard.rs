//! A lock that is held.

use std::process::Command;
use std::time::Duration;

use super::error::{Error, ErrorKind};
use super::loss::Lost;
use super::loss_monitor::{LossMonitor, Watched};
use crate::client::{Acquired, Client, ClientError};
use crate::protocol::place::{Place, Rule};
use crate::protocol::{ErrorName, Grant, GrantedKey, Release, Tag};
use crate::run;

/// A lock that this process holds. Dropping it releases the lock.
///
/// ```
/// use canal::{Guard, Lock};
///
/// # fn migrate(_: u64) {}
/// # fn main() -> Result<(), canal::Error> {
/// # let daemon = canal::testing::Daemon::start()?;
/// # let endpoint = daemon.endpoint();
/// let lock = Lock::write("db").and("runners").slots(4);
/// # let lock = lock.endpoint(&endpoint);
/// let guard: Guard = lock.acquire()?;
/// for key in guard.keys() {
///     println!("{}: {:?}", key.key, key.slots);
/// }
/// if !guard.is_lost() {
///     migrate(guard.token());
/// }
/// guard.release()?;
/// # Ok(())
/// # }
/// ```
///
/// The lock belongs to the *process*: it also ends when the process ends, however that happens,
/// `kill -9` included. It does not end with the thread that took it, and other threads of the
/// process are not kept out (see [`Lock`](crate::Lock)).
///
/// - `fork`: the lock stays with the process that took it. In the child, dropping the guard does
///   nothing.
/// - `exec`: the process keeps its lock until it ends, because no guard is left that could release
///   it.
/// - [`std::mem::forget`] does the same on purpose.
///
/// # Losing the lock
///
/// A daemon on one machine never takes a lock away, except when an operator breaks it
/// (`canal release --force`), which the guard does not notice before the release. A daemon that
/// shares its locks with other hosts over an engine can lose them: if the engine cannot be reached
/// for too long, other hosts get the lock. The guard tells of that *before* another host can have
/// the lock, but the program has to stop in time: ask [`is_lost`](Self::is_lost) before each step,
/// or have [`on_lost`](Self::on_lost) call back. [`OnLost::Kill`](crate::OnLost::Kill) has the
/// process killed instead. A resource that checks the [`token`](Self::token) is safe in any case.
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard {
    client: Client,
    place: Place,
    grant: Grant,
    tag: Tag,
    /// The process that took the lock.
    pid: u32,
    released: bool,
    /// Only of a lock that can be lost.
    monitor: Option<LossMonitor>,
}

impl Guard {
    /// The guard of what was granted to the request with this tag.
    pub(super) fn new(
        client: Client,
        place: Place,
        tag: Tag,
        acquired: Acquired,
    ) -> Result<Self, Error> {
        let Acquired { grant, page, .. } = acquired;
        let watched = Watched { place: place.clone(), tag, token: grant.token };
        let pid = std::process::id();
        // From here on an error releases the lock.
        let mut guard = Self { client, place, grant, tag, pid, released: false, monitor: None };
        if let Some(page) = page {
            let monitor = LossMonitor::begin(page, watched);
            guard.monitor = Some(monitor.map_err(ClientError::Io)?);
        }
        match guard.lost() {
            Some(lost) => Err(Error::new(ErrorKind::Lost, lost.to_string())),
            None => Ok(guard),
        }
    }

    /// The fencing token: greater than that of every grant before. A resource that remembers the
    /// greatest token and refuses smaller ones is safe from a process that goes on after it has
    /// lost its lock.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.grant.token
    }

    /// What was granted of each key, in the order of the request.
    #[must_use]
    pub fn keys(&self) -> &[GrantedKey] {
        &self.grant.keys
    }

    /// The numbers of all slots that are held, in the order of the request. Each is 0-based, and no
    /// two holds have the same slot of a key at once. Empty if all keys are read or written.
    #[must_use]
    pub fn slots(&self) -> Vec<u64> {
        self.grant.keys.iter().flat_map(|key| &key.slots).map(|slot| slot.slot).collect()
    }

    /// The number of the slot, if exactly one is held.
    #[must_use]
    pub fn slot(&self) -> Option<u64> {
        if let [slot] = self.slots()[..] { Some(slot) } else { None }
    }

    /// The name of the session, as [`status`](crate::status) shows it.
    #[must_use]
    pub fn session(&self) -> &str {
        &self.grant.session
    }

    /// Whether the lock is lost, or cannot be relied on any more. Once that is so, it stays so.
    /// This asks no daemon: it reads memory that the daemon shares.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lost().is_some()
    }

    /// Why and when the lock was lost, if it was.
    #[must_use]
    pub fn lost(&self) -> Option<Lost> {
        self.monitor.as_ref()?.lost()
    }

    /// Waits for the loss of the lock, at most this long.
    pub fn wait_lost(&self, time: Duration) -> Option<Lost> {
        match &self.monitor {
            Some(monitor) => monitor.wait_lost(time),
            None => {
                std::thread::sleep(time);
                None
            }
        }
    }

    /// Calls back, once, if the lock is lost while it is held: in a thread of canal's, or at once
    /// if it is lost already. The callback is dropped when the lock is released.
    pub fn on_lost(&self, callback: impl FnOnce(&Lost) + Send + 'static) {
        if let Some(monitor) = &self.monitor {
            monitor.on_lost(Box::new(callback));
        }
    }

    /// Makes a command part of this session: sets the variables that `canal run` sets for its
    /// command (`CANAL_KEY`, `CANAL_TOKEN`, `CANAL_SLOT` …). Then locks that the command takes do
    /// not conflict with this one.
    ///
    /// The lock does not wait for the command: it ends with this guard or this process.
    pub fn pass_to(&self, command: &mut Command) {
        let socket = (self.place.rule == Rule::Given).then_some(self.place.socket.as_path());
        let hold = self.monitor.as_ref().map(|_| run::environment::hold_variable(self.tag));
        for (name, value) in run::variables(&self.grant, socket).into_iter().chain(hold) {
            match value {
                Some(value) => command.env(&*name, value),
                None => command.env_remove(&*name),
            };
        }
    }

    /// Releases the lock, and tells whether that was done. Dropping the guard does the same and
    /// ignores errors.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if the lock was not held any more. [`ErrorKind::Unreachable`] if no
    /// daemon answered within some seconds: the lock may be held until this process ends.
    /// [`ErrorKind::Unavailable`] if the engine is away: the lock is released when it is back.
    /// [`ErrorKind::Invalid`] in a process that was forked from the one that took the lock.
    pub fn release(mut self) -> Result<(), Error> {
        if self.pid != std::process::id() {
            let message = format!("the lock belongs to process {}", self.pid);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        self.give_back()
    }

    fn give_back(&mut self) -> Result<(), Error> {
        self.released = true;
        let release = Release { token: Some(self.grant.token), ..Release::default() };
        let released = match self.client.release(&release, None) {
            // The daemon may have done it. A token is never used again, so asking again does no
            // harm.
            Err(ClientError::Gone) => match self.client.release(&release, None) {
                Err(error) if is_not_held(&error) => return Ok(()),
                again => again,
            },
            first => first,
        };
        Ok(released.map(drop)?)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.released && self.pid == std::process::id() {
            // The lock ends with this process at the latest.
            let _ = self.give_back();
        }
    }
}

fn is_not_held(error: &ClientError) -> bool {
    matches!(error, ClientError::Failure(failure) if failure.name == ErrorName::NotHeld)
}
