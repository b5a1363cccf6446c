//! Why a daemon cannot have its place.

use std::io;
use std::path::PathBuf;

/// What a claim may fail with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    /// Another daemon has the place.
    #[error("a daemon runs already at {socket}{}", .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    Running {
        /// Where.
        socket: PathBuf,
        /// Which, if that is known.
        pid: Option<u32>,
    },
    /// The place cannot be used.
    #[error("{0}")]
    Dir(#[from] crate::sys::dir::DirError),
    /// The system said no.
    #[error("{path}: {error}")]
    Io {
        /// To which file.
        path: PathBuf,
        /// What.
        error: io::Error,
    },
}
