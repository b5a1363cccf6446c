//! Runs a daemon for tests of programs that take locks.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::client::{Client, ClientError, Start};
use crate::protocol::NoParameters;
use crate::protocol::paths::{MachineUid, Place};
use crate::{Endpoint, Error, daemon};

/// How long the daemon may take to start.
const START_MAX: Duration = Duration::from_secs(30);

/// The pause between two checks whether the daemon is up.
const PAUSE: Duration = Duration::from_millis(2);

/// The directory for sockets if the name of the usual one is too long.
const SHORT_DIR: &str = "/tmp";

/// The file with the output of a daemon in a process of its own.
const LOG: &str = "daemon.log";

/// The longest name of a directory for temporary files that leaves room for a socket.
const DIR_BYTES_MAX: usize = 70;

/// A private daemon for one test, in its own directory. Dropping this value ends the daemon and
/// removes the directory. Tests that run at the same time do not affect each other.
///
/// ```
/// use canal::testing::Daemon;
/// use canal::{Client, Lock};
///
/// # fn main() -> Result<(), canal::Error> {
/// let daemon = Daemon::start()?;
/// let guard = Lock::new("db").endpoint(&daemon.endpoint()).acquire()?;
/// let status = Client::connect_to(&daemon.endpoint())?.status()?;
/// assert_eq!(status.keys[0].holders[0].pid, std::process::id());
/// drop(guard);
/// # Ok(())
/// # }
/// ```
///
/// A program under test uses the daemon if its environment has `CANAL_SOCKET`:
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let daemon = canal::testing::Daemon::start()?;
/// let mut program = std::process::Command::new("env");
/// program.env("CANAL_SOCKET", daemon.socket());
/// # program.stdout(std::process::Stdio::null());
/// assert!(program.status()?.success());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Daemon {
    runs_in: RunsIn,
    dir: TempDir,
    socket: PathBuf,
}

#[derive(Debug)]
enum RunsIn {
    /// A thread of this process. `None` once it has been joined.
    Thread(Option<JoinHandle<anyhow::Result<()>>>),
    /// A child process.
    Process(Child),
}

impl Daemon {
    /// Starts a daemon as a thread of this process. It needs no `canal` program, ends with the
    /// process at the latest, and does not log.
    ///
    /// # Errors
    /// The daemon cannot start: the directory for temporary files is unusable, or the kernel is too
    /// old.
    pub fn start() -> Result<Self, Error> {
        let (dir, socket) = new_dir()?;
        let options = daemon::Options {
            idle_exit_s: Some(0),
            without_engine: true,
            embedded: true,
            ..daemon::Options::at(place(&socket)?)
        };
        let thread = thread::Builder::new().name("canal-daemon".to_owned());
        let thread = thread.spawn(move || daemon::run(&options)).map_err(ClientError::Io)?;
        Self { runs_in: RunsIn::Thread(Some(thread)), dir, socket }.once_up()
    }

    /// Starts a program as the daemon: the path of a `canal`, or a name to look up in `PATH`. Use
    /// it for tests that kill or stop the daemon itself. If the test is killed, the daemon runs on
    /// until something ends it.
    ///
    /// # Errors
    /// The program cannot be started, or reports why it cannot be a daemon.
    pub fn start_program(canal: impl AsRef<OsStr>) -> Result<Self, Error> {
        let (dir, socket) = new_dir()?;
        let log = File::create(dir.path().join(LOG)).map_err(ClientError::Io)?;
        let canal = canal.as_ref();
        let mut command = Command::new(canal);
        command.args(["daemon", "--no-engine", "--socket"]).arg(&socket);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().map_err(|error| {
            let canal = canal.to_string_lossy();
            ClientError::Start(format!("cannot start {canal}: {error}"))
        })?;
        Self { runs_in: RunsIn::Process(child), dir, socket }.once_up()
    }

    /// The endpoint of the daemon, for [`Lock::endpoint`](crate::Lock::endpoint) and
    /// [`Client::connect_to`](crate::Client::connect_to). No call through this endpoint starts
    /// another daemon.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::at(&self.socket).no_start()
    }

    /// The path of the daemon's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The directory with the daemon's journal and state; it is removed at the end.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The process in which the daemon runs.
    pub fn pid(&self) -> u32 {
        match &self.runs_in {
            RunsIn::Thread(_) => std::process::id(),
            RunsIn::Process(child) => child.id(),
        }
    }

    /// The daemon, once clients can connect to it.
    fn once_up(mut self) -> Result<Self, Error> {
        let begun = Instant::now();
        loop {
            let Err(error) = self.connect() else { return Ok(self) };
            if let Some(why) = self.why_ended() {
                return Err(ClientError::Start(why).into());
            }
            if begun.elapsed() > START_MAX {
                return Err(error);
            }
            thread::sleep(PAUSE);
        }
    }

    /// Why the daemon has ended, if it has.
    fn why_ended(&mut self) -> Option<String> {
        match &mut self.runs_in {
            RunsIn::Thread(thread) => {
                let thread = thread.take_if(|thread| thread.is_finished())?;
                Some(match thread.join() {
                    Ok(Ok(())) => "the daemon has ended".to_owned(),
                    Ok(Err(error)) => format!("{error:#}"),
                    Err(_) => "the daemon has panicked".to_owned(),
                })
            }
            RunsIn::Process(child) => {
                let status = child.try_wait().ok()??;
                let log = std::fs::read_to_string(self.dir().join(LOG)).unwrap_or_default();
                Some(format!("the daemon has ended ({status}): {}", log.trim_end()))
            }
        }
    }

    /// Asks the daemon that listens at the socket to end, and waits until it has. Returns whether a
    /// daemon ended.
    fn stop(&self) -> bool {
        self.connect().is_ok_and(|mut client| client.stop(&NoParameters {}).is_ok())
    }

    fn connect(&self) -> Result<Client, Error> {
        Ok(Client::connect(&place(&self.socket)?, Start::Never)?)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        match &mut self.runs_in {
            RunsIn::Process(child) => {
                // The daemon may be stopped, or stuck because of something the test did to it.
                let _ = child.kill();
                let _ = child.wait();
                // A client of the test may have started another daemon.
                self.stop();
            }
            RunsIn::Thread(thread) => {
                let thread = thread.take();
                let stopped = self.stop();
                let ended = thread.filter(|thread| stopped || thread.is_finished());
                let _ = ended.map(JoinHandle::join);
            }
        }
    }
}

/// The place of the daemon at this socket.
fn place(socket: &Path) -> Result<Place, Error> {
    Ok(Place::find(Some(socket), MachineUid::own()).map_err(ClientError::Place)?)
}

/// A new directory, removed when this value is dropped, and the path for a socket in it.
fn new_dir() -> Result<(TempDir, PathBuf), Error> {
    let usual = std::env::temp_dir();
    let fits = usual.is_absolute() && usual.as_os_str().len() <= DIR_BYTES_MAX;
    let parent = if fits { usual } else { SHORT_DIR.into() };
    let made = tempfile::Builder::new().prefix("canal-test-").tempdir_in(&parent);
    let dir = made.map_err(|error| {
        let message = format!("cannot create a directory in {}: {error}", parent.display());
        ClientError::Start(message)
    })?;
    let socket = dir.path().join("canal.sock");
    Ok((dir, socket))
}
