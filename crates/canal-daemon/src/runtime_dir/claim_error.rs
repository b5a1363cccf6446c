//! Why a daemon cannot claim its place.

use std::io;
use std::path::PathBuf;

/// The errors of a claim.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another daemon has the place.
    #[error("a daemon is already running at \
             {socket}{}", .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    Running {
        socket: PathBuf,
        /// Its pid, if known.
        pid: Option<u32>,
    },
    /// The daemon of this directory listens at another socket in it.
    #[error(
        "the daemon in {dir} is listening at {theirs}{}, and a directory can have only one daemon",
        .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    OtherSocket {
        dir: PathBuf,
        /// The socket of the running daemon.
        theirs: PathBuf,
        /// Its pid, if known.
        pid: Option<u32>,
    },
    /// The socket cannot have the group or the mode that the configuration names.
    #[error("cannot give {socket} {what}: {error}")]
    Access {
        socket: PathBuf,
        /// The group or the mode.
        what: String,
        /// The error of the call.
        error: io::Error,
    },
    /// The file system, or a system call filter, does not support the lock.
    #[error("{path}: flock(2): {error}")]
    Lock {
        /// The file or directory to lock.
        path: PathBuf,
        /// The error of the call.
        error: io::Error,
    },
    /// The directory cannot be used.
    #[error("{0}")]
    Dir(#[from] canal_sys::dir::DirError),
    /// A system call failed.
    #[error("{path}: {error}")]
    Io {
        /// The file that was accessed.
        path: PathBuf,
        /// The error of the call.
        error: io::Error,
    },
}
