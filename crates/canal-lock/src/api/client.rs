//! Chooses a daemon, and reads its holders and waiters.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use canal_protocol::paths::{MachineUid, Place};
use canal_protocol::{NoParameters, StatusQuery, WhyQuery};

use super::error::Error;
use super::status::{Status, Waits};
use crate::client::{self, Options, Start, Watch, command_environment};

/// A connection to a daemon that reports its holders and waiters. It reconnects by itself if the
/// daemon is replaced. A forked process must open its own connection.
///
/// ```
/// use canal_lock::{Client, Lock};
///
/// # fn main() -> Result<(), canal_lock::Error> {
/// # let daemon = canal::testing::Daemon::start()?;
/// # let endpoint = daemon.endpoint();
/// # let _guard = Lock::new("gpu").slots(2).endpoint(&endpoint).acquire()?;
/// # let connect = || Client::connect_to(&endpoint);
/// # let mut client = connect()?;
/// # if false {
/// let mut client = Client::connect()?;
/// # }
/// for key in client.status()?.keys {
///     println!("{}: {} held, {} waiting", key.key, key.held, key.waiting);
///     for holder in key.holders {
///         println!("  pid {} since {}", holder.pid, holder.since);
///     }
/// }
///
/// // The present state, and then a new one after each change.
/// for status in client.updates().take(1) {
///     assert_eq!(status?.keys[0].held, 1);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Client(client::Client);

impl Client {
    /// Connects to the daemon that the `canal` command uses, and starts one if necessary.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable).
    pub fn connect() -> Result<Self, Error> {
        Self::connect_to(&Endpoint::new())
    }

    /// Connects to this daemon.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable), and
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a path that cannot name a socket.
    pub fn connect_to(endpoint: &Endpoint) -> Result<Self, Error> {
        endpoint.connect_for(None).map(Self)
    }

    /// Reads the state of all keys that are in use, have a stored size or are paused.
    ///
    /// # Errors
    /// No daemon answers.
    pub fn status(&mut self) -> Result<Status, Error> {
        Ok(self.0.status(&StatusQuery::default())?)
    }

    /// Reads the state of this key and of the keys below it.
    ///
    /// # Errors
    /// No daemon answers, or `key` is not a valid key.
    pub fn status_of(&mut self, key: &str) -> Result<Status, Error> {
        Ok(self.0.status(&of(key))?)
    }

    /// Reports what blocks a process, what blocks those processes in turn, and so on to the end of
    /// the chain. The result is empty if the process does not wait.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the process neither holds nor waits.
    pub fn why(&mut self, pid: u32) -> Result<Waits, Error> {
        Ok(self.0.why(&WhyQuery { pid: Some(pid), session: None })?)
    }

    /// Reports all waiting requests and what blocks each of them.
    ///
    /// # Errors
    /// No daemon answers.
    pub fn waits(&mut self) -> Result<Waits, Error> {
        Ok(self.0.graph(&NoParameters {})?)
    }

    /// Reports the state of all keys now and after each change, a few times a second at most.
    pub fn updates(self) -> Updates {
        Updates::new(self.0, StatusQuery::default())
    }

    /// Reports the state of this key and of the keys below it, now and after each change.
    pub fn updates_of(self, key: &str) -> Updates {
        Updates::new(self.0, of(key))
    }
}

fn of(key: &str) -> StatusQuery {
    StatusQuery { key: Some(key.to_owned()), ..StatusQuery::default() }
}

/// The state of the locks, now and after each change. Between changes the iterator sleeps and costs
/// nothing. If the daemon is replaced, the iterator continues with the next one. It ends after an
/// error.
#[derive(Debug)]
pub struct Updates {
    client: client::Client,
    watch: Watch,
    failed: bool,
}

impl Updates {
    fn new(client: client::Client, query: StatusQuery) -> Self {
        Self { client, watch: Watch::new(query), failed: false }
    }

    /// Returns the next state, or `None` if nothing changes within this time. The first state comes
    /// immediately.
    ///
    /// # Errors
    /// No daemon answers, or the iterator was created with an invalid key.
    pub fn next_within(&mut self, time: Duration) -> Result<Option<Status>, Error> {
        self.next_until(Instant::now().checked_add(time))
    }

    fn next_until(&mut self, until: Option<Instant>) -> Result<Option<Status>, Error> {
        let next = self.watch.next(&mut self.client, until);
        self.failed |= next.is_err();
        Ok(next?)
    }
}

impl Iterator for Updates {
    type Item = Result<Status, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        self.next_until(None).transpose()
    }
}

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
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses the daemon that listens at this socket. Its journal, state and configuration are in
    /// the same directory.
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

    /// Connects for a request that waits at most this long.
    pub(super) fn connect_for(&self, wait_ms: Option<u64>) -> Result<client::Client, Error> {
        let variable = std::env::var_os(command_environment::SOCKET).map(PathBuf::from);
        let given = self.socket.as_deref().or(variable.as_deref());
        let place = Place::find(given, MachineUid::own()).map_err(Error::invalid)?;
        let start = if self.never_starts { Start::Never } else { Start::IfNeeded };
        let options = Options { program: self.program.clone(), ..Options::from(start) };
        Ok(client::Client::connect(&place, options.of_wait(wait_ms))?)
    }
}
