//! A connection to a node: an ssh process with a bridge at its other end, or the socket of a daemon
//! of this machine.
//!
//! Nothing here waits: the caller polls the descriptors of all its links together. A link answers
//! calls in the order in which they were sent. The caller reaps the processes of dropped links with
//! [`reap`].
//!
//! Invariant: bytes read from a link belong to that link alone, and a link that has ended yields
//! nothing.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use serde::de::DeserializeOwned;

use canal_protocol::frame;
use canal_protocol::node_address::{NodeAddress, SshHost};
use canal_protocol::paths::Place;
use canal_protocol::{ErrorName, Failure, NODES_INTERFACE, NoParameters, Node, NodeFailure};
use canal_sys::clock::boottime_ms;
use canal_sys::fds;
use canal_sys::process::child::{End, Reap, end_with_parent, ended, fork};

use super::ssh;
use crate::client::connection::options::Options;
use crate::client::connection::start_daemon::{Starts, connect, connect_at_once};
use crate::client::connection::stream::{Connection, Outgoing, Read};
pub use crate::client::connection::stream::{Replies, Reply};
use crate::client::error::ClientError;

/// How many of the last bytes from a process's standard error are kept.
const SAID_BYTES: usize = 16 * 1024;

/// The user's own ssh program, found in PATH.
const SSH: &str = "ssh";

/// The exit code of a process that could not start a daemon.
const START_FAILED: i32 = 125;

/// How long an ssh may take to end after its side of the connection, in milliseconds.
const STUCK_MS: u64 = 1000;

/// A connection to a node.
#[derive(Debug)]
pub struct Link {
    /// The ssh, or the process that starts a daemon of this machine.
    process: Option<Pid>,
    reach: Reach,
    /// `None` until that daemon listens, and once the other side has closed its end.
    connection: Option<Connection>,
    /// The bytes to write once that daemon listens.
    early: Vec<u8>,
    /// The standard error of the process.
    errors: Option<File>,
    said: Vec<u8>,
    heard_at: u64,
    /// Whether the process ends by itself when its input does, after passing on what was sent
    /// before.
    ends_by_itself: bool,
}

/// The way to reach a node.
#[derive(Clone, Debug)]
enum Reach {
    Ssh(SshHost, Option<String>),
    Here(Place),
}

impl Link {
    /// Starts to connect to a node. `here` is the place that all commands of this machine use. An
    /// ssh checks a connection that is silent for `alive_s` seconds. This process must have one
    /// thread.
    ///
    /// # Errors
    /// No process can be started, for example because ssh is not installed.
    pub fn open(
        node: &Node,
        here: &Place,
        options: &Options,
        alive_s: u64,
    ) -> Result<Self, NodeFailure> {
        match &node.address {
            NodeAddress::Local => Self::on_this_machine(here.clone(), options),
            NodeAddress::Unix(socket) => {
                let place = Place::find(Some(socket), here.uid.clone());
                Self::on_this_machine(place.map_err(NodeFailure::permanent)?, options)
            }
            NodeAddress::Ssh(host) => Self::over_ssh(host, node.canal.as_deref(), alive_s),
        }
    }

    fn over_ssh(host: &SshHost, canal: Option<&str>, alive_s: u64) -> Result<Self, NodeFailure> {
        let start = || {
            let (socket, its) = UnixStream::pair()?;
            let (socket, its) = (OwnedFd::from(socket), OwnedFd::from(its));
            let (errors, its_errors) = errors()?;
            let mut command = Command::new(SSH);
            command.args(ssh::arguments(host, canal, alive_s)).env("LC_ALL", "C");
            let child = command.stdin(its.try_clone()?).stdout(its).stderr(its_errors).spawn()?;
            Ok((socket, Pid::from_raw(child.id().cast_signed()), errors))
        };
        let started = start().map_err(|error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => NodeFailure::permanent("there is no `ssh` on this machine")
                .hint("install openssh-client"),
            _ => NodeFailure::passing(format!("cannot start ssh: {error}")),
        });
        let (socket, process, errors) = started?;
        let reach = Reach::Ssh(host.clone(), canal.map(str::to_owned));
        Ok(Self::new(reach, Some(socket), Some((process, errors))))
    }

    /// Connects to a daemon that listens. A separate process starts one if necessary, so that a
    /// daemon that is slow, stopped or not yet started never blocks the caller.
    fn on_this_machine(place: Place, options: &Options) -> Result<Self, NodeFailure> {
        // The separate process finds the reason for an error.
        if let Ok(Some(socket)) = connect_at_once(&place) {
            return Ok(Self::new(Reach::Here(place), Some(socket), None));
        }
        let start = || {
            let (errors, its_errors) = errors()?;
            if let Some(process) = fork()? {
                return Ok((process, errors));
            }
            fds::close_except(&[its_errors.as_fd()]);
            let connected = end_with_parent(its_errors.as_fd())
                .map_err(ClientError::from)
                .and_then(|()| connect(&place, options, false, &mut Starts::default()));
            if let Err(error) = &connected {
                // It does not matter if the reader is gone.
                let _ = nix::unistd::write(&its_errors, error.to_string().as_bytes());
            }
            std::process::exit(if connected.is_ok() { 0 } else { START_FAILED });
        };
        let process = start().map_err(|error: io::Error| {
            NodeFailure::passing(format!("cannot start a daemon: {error}"))
        })?;
        Ok(Self::new(Reach::Here(place), None, Some(process)))
    }

    fn new(reach: Reach, socket: Option<OwnedFd>, process: Option<(Pid, File)>) -> Self {
        let ((process, errors), connection) = (process.unzip(), socket.map(Connection::new));
        let (early, said, heard_at) = (Vec::new(), Vec::new(), boottime_ms());
        let ends_by_itself = false;
        Self { process, reach, connection, early, errors, said, heard_at, ends_by_itself }
    }

    /// Sends a call. `method` includes its interface. [`Self::turn`] writes what cannot be written
    /// now.
    ///
    /// # Errors
    /// The parameters have no JSON form.
    pub fn send<P: Serialize>(
        &mut self,
        method: &str,
        parameters: &P,
        replies: Replies,
    ) -> Result<(), NodeFailure> {
        frame::append(&Outgoing::new(method, parameters, replies), self.pending())
            .map_err(|error| NodeFailure::permanent(error.to_string()))?;
        self.connection.as_mut().map(Connection::flush);
        Ok(())
    }

    /// The bytes that wait to be written.
    fn pending(&mut self) -> &mut Vec<u8> {
        self.connection.as_mut().map_or(&mut self.early, |connection| &mut connection.pending)
    }

    /// Sends a sign of life. A bridge answers it with another one.
    pub fn beat(&mut self) {
        // A beat that still waits to be written has the same effect.
        if !self.pending().is_empty() {
            return;
        }
        if self.is_local() {
            // No network can cut this connection off without a sign.
            self.heard_at = boottime_ms();
            let method = format!("{NODES_INTERFACE}.Identify");
            let _ = self.send(&method, &NoParameters {}, Replies::None);
        } else if let Some(connection) = &mut self.connection {
            connection.pending.push(0);
            connection.flush();
        }
    }

    /// Whether the other side is a daemon of this machine, not a bridge.
    pub fn is_local(&self) -> bool {
        matches!(self.reach, Reach::Here(_))
    }

    /// When the other side last sent something, by CLOCK_BOOTTIME in milliseconds.
    pub fn heard_at(&self) -> u64 {
        self.heard_at
    }

    /// The descriptors to poll.
    pub fn polled(&self) -> impl Iterator<Item = PollFd<'_>> {
        let socket = self.connection.as_ref().map(|it| it.polled(PollFlags::POLLIN));
        let errors = self.errors.as_ref().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN));
        socket.into_iter().chain(errors)
    }

    /// Writes and reads as much as possible without waiting, and returns the answers that came.
    ///
    /// # Errors
    /// The link has ended; the error contains the reason.
    pub fn turn(&mut self) -> Result<Vec<Reply>, NodeFailure> {
        self.read_errors();
        let mut answers = Vec::new();
        while let Some(connection) = &mut self.connection {
            connection.flush();
            let read = connection.read(Duration::ZERO, None);
            if let Ok(Read::Nothing(_)) = read {
                return Ok(answers);
            }
            // The end is a sign of life, too: its process ends soon.
            self.heard_at = boottime_ms();
            match read {
                // Without content, it is a beat.
                Ok(Read::Message(message)) if !message.is_empty() => {
                    answers.push(frame::parse(&message).map_err(|error| wrong(&error))?);
                }
                Ok(_) => {}
                Err(ClientError::Protocol(what)) => return Err(wrong(&what)),
                Err(_) => self.connection = None,
            }
        }
        // What came before the end comes first.
        if answers.is_empty() {
            self.follow_process()?;
        }
        Ok(answers)
    }

    fn read_errors(&mut self) {
        let Some(errors) = &mut self.errors else { return };
        // It keeps what it has read even if it fails.
        let read = errors.read_to_end(&mut self.said);
        let surplus = self.said.len().saturating_sub(SAID_BYTES);
        self.said.drain(..surplus);
        if !read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.errors = None;
        }
    }

    /// Without a connection: connects to the daemon that the process has started, or finds out why
    /// the link ended, once the process has ended or is stuck.
    fn follow_process(&mut self) -> Result<(), NodeFailure> {
        let code = match self.process.map(|process| ended(process, Reap::Later)) {
            Some(Ok(Some(End::Exited(code)))) => Some(i32::from(code)),
            // Its last output is on the way, unless it is stuck.
            Some(Ok(None))
                if self.is_local() || boottime_ms().saturating_sub(self.heard_at) < STUCK_MS =>
            {
                return Ok(());
            }
            _ => None,
        };
        self.read_errors();
        let said = String::from_utf8_lossy(&self.said).replace('\r', "");
        Err(match &self.reach {
            Reach::Ssh(host, canal) => ssh::explain(host, canal.as_deref(), code, &said),
            Reach::Here(place) if code == Some(0) => match connect_at_once(place) {
                Ok(Some(socket)) => {
                    let connection = self.connection.insert(Connection::new(socket));
                    connection.pending.append(&mut self.early);
                    connection.flush();
                    // This reaps it.
                    let _ = self.process.take().map(|process| ended(process, Reap::Now));
                    return Ok(());
                }
                Ok(None) => NodeFailure::passing("its daemon has ended or is busy"),
                Err(error) => NodeFailure::passing(error.to_string()),
            },
            Reach::Here(_) if said.is_empty() => NodeFailure::passing("the connection was closed"),
            Reach::Here(_) => NodeFailure::passing(said),
        })
    }

    /// Whether the process at this side is about to end. If so, the caller must call [`Self::turn`]
    /// again soon.
    pub fn is_closing(&self) -> bool {
        self.connection.is_none() && (self.errors.is_none() || !self.is_local())
    }

    /// Makes sure that what was sent arrives even if the link is dropped.
    pub fn end_by_itself(&mut self) {
        self.ends_by_itself = true;
    }
}

impl Drop for Link {
    /// Ends the process without waiting for it.
    fn drop(&mut self) {
        let Some(process) = self.process else { return };
        if !self.ends_by_itself {
            let _ = kill(process, Signal::SIGKILL);
        }
        ENDING.lock().unwrap_or_else(PoisonError::into_inner).push(process);
    }
}

/// A pipe for the standard error of a process; reading from it never waits.
fn errors() -> io::Result<(File, OwnedFd)> {
    let (errors, its_errors) = fds::pipe()?;
    fcntl(&errors, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((errors.into(), its_errors))
}

/// The failure of another side that is not canal.
fn wrong(what: &dyn fmt::Display) -> NodeFailure {
    let what = format!("expected an answer from canal, but the other side sent: {what}");
    NodeFailure::permanent(what)
        .hint("make sure that login scripts there print nothing in a session without a terminal")
}

/// The parameters of an answer that is no error.
///
/// # Errors
/// They are not those of the call.
pub fn parameters<T: DeserializeOwned>(answer: &Reply) -> Result<T, NodeFailure> {
    serde_json::from_slice(answer.parameters().as_bytes())
        .map_err(|error| NodeFailure::permanent(format!("cannot parse its answer: {error}")))
}

/// The answer, or the error that it carries. The outer error is that of a connection that is no
/// longer useful.
pub fn outcome(answer: Reply) -> Result<Result<Reply, Box<Failure>>, NodeFailure> {
    let Some(error) = answer.failure() else { return Ok(Ok(answer)) };
    Err(match error {
        ClientError::Gone(_) => NodeFailure::passing("its daemon is stopping"),
        error if error.is_unknown_method() => ssh::older(),
        ClientError::UnknownError { message, .. } => NodeFailure::passing(message),
        ClientError::Failure(failure) => match failure.name {
            ErrorName::EngineAway | ErrorName::DiskFull | ErrorName::Fault => {
                NodeFailure::passing(failure.message)
            }
            _ => {
                // The number is a user of that machine, whose name may differ here.
                let message = failure.message.replace("uid ", "user ");
                return Ok(Err(Box::new(Failure { message, ..failure })));
            }
        },
        ClientError::Protocol(error) => {
            NodeFailure::permanent(format!("cannot parse its answer: {error}"))
        }
        error => NodeFailure::permanent(error.to_string()),
    })
}

/// The processes of dropped links that may not have been reaped.
static ENDING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Reaps the processes of dropped links that have ended. Returns whether others are left.
pub fn reap() -> bool {
    let mut ending = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
    ending.retain(|process| matches!(ended(*process, Reap::Now), Ok(None)));
    !ending.is_empty()
}
