//! Why a call failed.

use std::io;
use std::path::PathBuf;

use crate::protocol::Failure;
use crate::protocol::frame::FrameError;
use crate::sys::process::state_letter;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The daemon answered with an error.
    #[error(transparent)]
    Failure(#[from] Failure),
    /// The daemon answered with an error that this version does not know.
    #[error("{message}")]
    UnknownError {
        /// Its qualified name.
        name: String,
        /// What the daemon says of it; the name where it says nothing.
        message: String,
    },
    /// No daemon runs, and none was to be started: where it was looked for.
    #[error("no daemon runs at {0}")]
    NoDaemon(PathBuf),
    /// A daemon was started and could not come up; its own message.
    #[error("{0}")]
    Start(String),
    /// The daemon does not answer: its pid and state letter where known.
    #[error("{}", silence(*pid, *state))]
    Silent {
        /// Its process; 0 if unknown.
        pid: u32,
        /// The state letter of /proc, `?` if unknown.
        state: char,
    },
    /// Nobody can read any more what this process prints, and the request was given up for that.
    #[error("gave up: nobody reads standard output and standard error any longer")]
    Abandoned,
    /// The daemon went away before it answered a call that must not be sent twice.
    #[error("the daemon went away before it answered; `canal status` tells what it did")]
    Gone,
    /// The user's own daemon, from before the machine had one, still holds locks or has waiters.
    #[error("your own daemon still has locks that the machine's daemon does not know: {what}")]
    HeldAtOwnDaemon {
        /// Some of the keys, with processes.
        what: String,
        /// Its socket.
        socket: PathBuf,
    },
    /// The socket's place cannot be used.
    #[error("{0}")]
    Place(String),
    /// The answer is not what the protocol wants.
    #[error("the daemon's answer cannot be understood: {0}")]
    Protocol(String),
    /// A system call failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl ClientError {
    /// The error of a daemon that does not answer.
    pub(super) fn silent(pid: Option<u32>) -> Self {
        let state = pid.and_then(state_letter).unwrap_or('?');
        Self::Silent { pid: pid.unwrap_or(0), state }
    }
}

impl From<FrameError> for ClientError {
    fn from(error: FrameError) -> Self {
        Self::Protocol(error.to_string())
    }
}

fn silence(pid: u32, state: char) -> String {
    match pid {
        0 => "the daemon does not answer".to_owned(),
        _ => format!("daemon pid {pid} (state {state}) does not answer"),
    }
}

/// How one attempt at a call failed.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The connection ended before the last reply.
    Disconnected(CallOutcome),
    /// Another attempt would not help.
    Failed(ClientError),
}

/// What a lost connection says about the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// The daemon did not do it: it did not read the whole call, or answered that it is stopping.
    Undone,
    /// The daemon may have done it.
    Unknown,
}

impl Broken {
    /// What became of an attempt, as a line for people.
    pub(super) fn explained<T>(
        attempt: &Result<T, Self>,
        done: impl FnOnce(&T) -> String,
    ) -> String {
        match attempt {
            Ok(answer) => done(answer),
            Err(Self::Disconnected(CallOutcome::Undone)) => {
                "the daemon ended the connection before it took the call".to_owned()
            }
            Err(Self::Disconnected(CallOutcome::Unknown)) => {
                "the daemon ended the connection before it answered".to_owned()
            }
            Err(Self::Failed(error)) => error.to_string(),
        }
    }

    /// An error at the socket. ECONNRESET means that the daemon's end was closed over bytes that
    /// it had not read (`unix_release_sock` in the kernel).
    pub(super) fn from_socket(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ECONNRESET) => Self::Disconnected(CallOutcome::Undone),
            _ => Self::Failed(error.into()),
        }
    }
}

impl<E: Into<ClientError>> From<E> for Broken {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}
