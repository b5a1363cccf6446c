//! Defines why a call failed.

use std::io;
use std::path::PathBuf;

use canal_protocol::Failure;
use canal_protocol::frame::FrameError;
use canal_protocol::paths::Place;
use canal_sys::process::state_letter;

/// The result of a call, or of a step of one.
pub(crate) type Result<T, E = ClientError> = std::result::Result<T, E>;

/// The reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The daemon answered with an error.
    #[error(transparent)]
    Failure(#[from] Failure),
    /// The daemon answered with an error that this version does not know.
    #[error("{message}")]
    UnknownError {
        /// The qualified name of the error.
        name: String,
        /// The daemon's message, or the name if there is none.
        message: String,
    },
    /// No daemon runs at this place, and starting one was not allowed.
    #[error("no daemon is running at {}", .0.socket.display())]
    NoDaemon(Box<Place>),
    /// A daemon was started but could not come up. Contains its own message.
    #[error("{0}")]
    Start(String),
    /// The daemon does not answer. Contains its pid and state letter, where known.
    #[error("{}", silence(*pid, *state))]
    Silent {
        /// The pid of the daemon; 0 if unknown.
        pid: u32,
        /// The state letter from /proc; `?` if unknown.
        state: char,
    },
    /// No process can read this process's output any longer, so it gave up the request.
    #[error("gave up: standard output and standard error have no reader left")]
    Abandoned,
    /// The daemon went away before it answered.
    #[error("the daemon ended before it answered; run `canal status` to see what it did")]
    Gone(CallOutcome),
    /// The user's own daemon, from before the machine had one, still has holders or waiters.
    #[error(
        "your own daemon still holds locks that the machine's daemon does not know about: {what}"
    )]
    HeldAtOwnDaemon {
        /// Some of the keys, with their processes.
        what: String,
        /// The socket of the user's own daemon.
        socket: PathBuf,
    },
    /// The directory of the socket is unusable.
    #[error("{0}")]
    Place(String),
    /// The answer violates the protocol.
    #[error("cannot parse the daemon's answer: {0}")]
    Protocol(String),
    /// A system call failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl ClientError {
    /// Describes a daemon that does not answer.
    pub(super) fn silent(pid: Option<u32>) -> Self {
        let state = pid.and_then(state_letter).unwrap_or('?');
        Self::Silent { pid: pid.unwrap_or(0), state }
    }

    /// Classifies an error at the socket. ECONNRESET means that the daemon's end was closed with
    /// unread bytes (`unix_release_sock` in the kernel).
    pub(super) fn from_socket(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ECONNRESET) => Self::Gone(CallOutcome::Undone),
            _ => error.into(),
        }
    }

    /// The error as a line of a trace.
    pub(super) fn traced(&self) -> String {
        match self {
            Self::Gone(CallOutcome::Undone) => {
                "the daemon closed the connection before it accepted the call".to_owned()
            }
            Self::Gone(CallOutcome::Unknown) => {
                "the daemon closed the connection before it answered".to_owned()
            }
            error => error.to_string(),
        }
    }

    /// Whether the daemon does not know the method, because it is older than this client.
    pub(super) fn is_unknown_method(&self) -> bool {
        let unknown =
            ["org.varlink.service.InterfaceNotFound", "org.varlink.service.MethodNotFound"];
        matches!(self, Self::UnknownError { name, .. } if unknown.contains(&name.as_str()))
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

/// The conclusion from a lost connection about the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The daemon did not carry it out: it did not read the whole call, or answered that it is
    /// stopping.
    Undone,
    /// The daemon may have carried it out.
    Unknown,
}
