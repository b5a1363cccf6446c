//! Directories that must be ours.
//!
//! What is checked is the opened directory, not a path that somebody could exchange in between.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, lstat};

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

/// The bits of a mode that let others write.
const OTHERS_WRITE: u32 = 0o022;

/// Opens a directory without following a link at its end, and checks that it is `uid`'s and that
/// nobody else can write in it. With `create`, makes it (0700) if it is not there.
///
/// Links in the directories above it are followed: who may write there can exchange everything
/// below it anyway. Others may read it if its owner wants it so (`/run/canal`).
pub fn open_private(path: &Path, uid: u32, create: bool) -> Result<OwnedFd, DirError> {
    // With a slash or a dot at its end a link would be followed.
    let path = &path.components().collect::<PathBuf>();
    if create {
        match nix::unistd::mkdir(path, Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(Errno::ENOENT) => {
                let parent = path.parent().unwrap_or(path);
                return Err(DirError::Missing(parent.to_owned()));
            }
            Err(error) => return Err(DirError::Io(path.clone(), error.into())),
        }
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let dir = open(path, flags, Mode::empty()).map_err(|error| not_opened(path, uid, error))?;
    let stat = fstat(&dir).map_err(|error| DirError::Io(path.clone(), error.into()))?;
    check_owner(path, &stat, uid)?;
    let mode = stat.st_mode & 0o7777;
    if mode & OTHERS_WRITE != 0 {
        return Err(DirError::Open(path.clone(), mode));
    }
    Ok(dir)
}

/// Whether [`open_private`] would find nothing wrong; asked with one call to the kernel, for who
/// goes on by the path anyway.
#[must_use]
pub fn is_private(path: &Path, uid: u32) -> bool {
    // With a slash or a dot at its end a link would be followed.
    let bytes = path.as_os_str().as_bytes();
    let plain = !bytes.ends_with(b"/") && !bytes.ends_with(b"/.");
    plain
        && with_c_str(path, lstat).is_ok_and(|stat| {
            let is_dir = stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFDIR.bits();
            is_dir && stat.st_uid == uid && stat.st_mode & OTHERS_WRITE == 0
        })
}

/// Calls with a path as C has it. (nix has a kilobyte of the stack ready for each, which is more than a
/// short program uses otherwise.)
///
/// # Errors
/// EINVAL if there is a NUL in it; those of the call.
pub fn with_c_str<T>(
    path: &Path,
    call: impl FnOnce(&CStr) -> Result<T, Errno>,
) -> Result<T, Errno> {
    call(&CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?)
}

fn check_owner(path: &Path, stat: &FileStat, uid: u32) -> Result<(), DirError> {
    if stat.st_uid == uid {
        return Ok(());
    }
    Err(DirError::Foreign(path.to_owned(), stat.st_uid, uid))
}

/// Says why a directory could not be opened, in the terms of who is to put it right.
fn not_opened(path: &Path, uid: u32, error: Errno) -> DirError {
    let owned = path.to_owned();
    match (error, lstat(path)) {
        (Errno::ENOENT, _) => DirError::Missing(owned),
        // O_DIRECTORY | O_NOFOLLOW on a link says ENOTDIR, or ELOOP where it is checked first.
        (Errno::ELOOP | Errno::ENOTDIR, Ok(stat)) => {
            match SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) {
                SFlag::S_IFLNK => DirError::Symlink(owned),
                SFlag::S_IFDIR => DirError::Io(owned, error.into()),
                _ => DirError::NotADirectory(owned),
            }
        }
        // Somebody else's 0700: say whose it is, not that we may not.
        (Errno::EACCES, Ok(stat)) => match check_owner(path, &stat, uid) {
            Err(foreign) => foreign,
            Ok(()) => DirError::Io(owned, error.into()),
        },
        _ => DirError::Io(owned, error.into()),
    }
}

#[cfg(test)]
mod tests;
