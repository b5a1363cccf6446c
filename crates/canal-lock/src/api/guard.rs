//! Owns a lock that this process holds, and releases it.

use std::process::Command;
use std::time::Duration;

use super::error::Error;
use super::loss::{LossMonitor, Lost};
use crate::client::{Acquired, Client, ClientError, command_environment};
use canal_protocol::paths::{Place, Rule};
use canal_protocol::{ErrorName, Failure, Grant, GrantedKey, Release, Released, Tag};

/// A lock that this process holds. Dropping it releases the lock.
///
/// ```
/// use canal_lock::{Guard, Lock};
///
/// # fn migrate(_: u64) {}
/// # fn main() -> Result<(), canal_lock::Error> {
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
/// The lock belongs to the *process*: it ends when the process ends for any reason, including `kill
/// -9`. It outlives the thread that took it, and it does not exclude other threads of the process
/// (see [`Lock`](crate::Lock)).
///
/// - `fork`: the lock stays with the process that took it. In the child, dropping the guard does
///   nothing.
/// - `exec`: the process keeps its lock until it ends, because no guard remains to release it.
/// - [`std::mem::forget`] also keeps the lock until the process ends.
///
/// # Losing the lock
///
/// A daemon on one machine never takes a lock away, unless an operator breaks it (`canal release
/// --force`). The guard notices that only at the release. A daemon that shares its locks with other
/// hosts through an engine can lose them: if it cannot reach the engine for too long, other hosts
/// get the lock. The guard reports the loss *before* another host can get the lock, but the program
/// must stop in time: call [`is_lost`](Self::is_lost) before each step, or register a callback with
/// [`on_lost`](Self::on_lost). With [`OnLost::Kill`](crate::OnLost::Kill), the daemon kills the
/// process instead. A resource that checks the [`token`](Self::token) is safe in any case.
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard {
    client: Client,
    grant: Grant,
    tag: Tag,
    /// The process that took the lock.
    pid: u32,
    released: bool,
    /// `None` if the lock cannot be lost.
    monitor: Option<LossMonitor>,
}

impl Guard {
    /// Creates the guard for what the daemon granted to the request with this tag.
    pub(super) fn new(client: Client, tag: Tag, acquired: Acquired) -> Result<Self, Error> {
        let Acquired { grant, page, .. } = acquired;
        let pid = std::process::id();
        // If a later step fails, dropping the guard releases the lock.
        let mut guard = Self { client, grant, tag, pid, released: false, monitor: None };
        if let Some(page) = page {
            let place = guard.client.place.clone();
            let monitor = LossMonitor::begin(page, guard.token(), place, tag);
            guard.monitor = Some(monitor.map_err(ClientError::Io)?);
        }
        match guard.lost() {
            Some(lost) => {
                let failure = Failure::new(ErrorName::NotHeld, lost.to_string());
                Err(ClientError::from(failure).into())
            }
            None => Ok(guard),
        }
    }

    /// The fencing token, which is greater than the tokens of all earlier grants. A resource that
    /// remembers the greatest token and refuses smaller ones is safe from a process that continues
    /// after it has lost its lock.
    pub fn token(&self) -> u64 {
        self.grant.token
    }

    /// The slots that were granted of each key, in the order of the request.
    pub fn keys(&self) -> &[GrantedKey] {
        &self.grant.keys
    }

    /// The numbers of all held slots, in the order of the request. Numbers start at 0, and two
    /// holds never have the same slot of a key at the same time. Empty if all keys are read or
    /// written.
    pub fn slots(&self) -> Vec<u64> {
        self.grant.keys.iter().flat_map(|key| &key.slots).map(|slot| slot.slot).collect()
    }

    /// The number of the slot, if the lock has exactly one.
    pub fn slot(&self) -> Option<u64> {
        if let [slot] = self.slots()[..] { Some(slot) } else { None }
    }

    /// The name of the session, as [`status`](crate::status) shows it.
    pub fn session(&self) -> &str {
        &self.grant.session
    }

    /// Whether the lock is lost, or can no longer be relied on. A lost lock stays lost. This call
    /// needs no daemon: it reads memory that the daemon shares.
    pub fn is_lost(&self) -> bool {
        self.lost().is_some()
    }

    /// Why and when the lock was lost, if it was.
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

    /// Calls back once if the lock is lost while it is held: in a thread that canal owns, or
    /// immediately if the lock is already lost. Releasing the lock drops the callback.
    pub fn on_lost(&self, callback: impl FnOnce(&Lost) + Send + 'static) {
        if let Some(monitor) = &self.monitor {
            monitor.on_lost(Box::new(callback));
        }
    }

    /// Makes a command part of this session: sets the variables that `canal run` sets for its
    /// command (`CANAL_KEY`, `CANAL_TOKEN`, `CANAL_SLOT` …). Locks that the command takes then do
    /// not conflict with this one.
    ///
    /// The lock does not wait for the command: it ends with this guard or this process.
    pub fn pass_to(&self, command: &mut Command) {
        let Place { rule, socket, .. } = &self.client.place;
        let socket = (*rule == Rule::Given).then_some(socket.as_path());
        let hold = self.monitor.as_ref().map(|_| command_environment::hold_variable(self.tag));
        for (name, value) in
            command_environment::variables(&self.grant, socket).into_iter().chain(hold)
        {
            match value {
                Some(value) => command.env(&*name, value),
                None => command.env_remove(&*name),
            };
        }
    }

    /// Releases the lock and reports whether that succeeded. Dropping the guard does the same but
    /// ignores errors.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lock was no longer held.
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) if no daemon answered within a few
    /// seconds: the lock may stay held until this process ends.
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the daemon cannot reach the
    /// engine: the lock is released once it can. [`ErrorKind::Invalid`](crate::ErrorKind::Invalid)
    /// in a process that was forked from the one that took the lock.
    pub fn release(mut self) -> Result<(), Error> {
        if self.pid != std::process::id() {
            let message = format!("the lock belongs to process {}", self.pid);
            return Err(Error::invalid(message));
        }
        self.give_back()
    }

    fn give_back(&mut self) -> Result<(), Error> {
        self.released = true;
        let release = Release { token: Some(self.grant.token), ..Release::default() };
        self.client.give_back(&release, None, Released::default())?;
        Ok(())
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
