//! Directories that must be ours.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// It is a symbolic link.
    #[error("{0} is a symbolic link")]
    Symlink(PathBuf),
    /// It is no directory.
    #[error("{0} is not a directory")]
    NotADirectory(PathBuf),
    /// Somebody else's: path and owner.
    #[error("{0} belongs to uid {1}, not to uid {2}")]
    Foreign(PathBuf, u32, u32),
    /// Others may write in it: path and mode.
    #[error("{0} can be written by others (mode {1:04o}, expected 0700)")]
    Open(PathBuf, u32),
    /// It is not there.
    #[error("{0} does not exist")]
    Missing(PathBuf),
    /// Anything else.
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
}

/// Opens a directory without following a link at its end, and checks that it is `uid`'s and that
/// nobody else can write in it. With `create`, makes it (0700) if it is not there.
pub fn open_private(path: &Path, uid: u32, create: bool) -> Result<OwnedFd, DirError> {
    let _ = (path, uid, create);
    todo!()
}
