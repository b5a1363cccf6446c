//! Private directories, the removal of files in them, and reports of changes in them.
//!
//! Checks the directory that it opened, since another process could exchange a path in between.

use std::ffi::{CStr, CString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::sys::inotify::{InitFlags, Inotify};
use rustix::fs::{CWD, FileType, Mode, OFlags, mkdir, mkfifoat, open};
use rustix::io::Errno;

use super::process::user::{fstat, is_dir, lstat};

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// It is a symbolic link.
    #[error("{0} is a symbolic link")]
    Symlink(PathBuf),
    /// It is not a directory.
    #[error("{0} is not a directory")]
    NotADirectory(PathBuf),
    /// It belongs to another user: path and owner.
    #[error("{0} belongs to uid {1}, not to uid {2}")]
    Foreign(PathBuf, u32, u32),
    /// Other users may write in it: path and mode.
    #[error("{0} is writable by other users (mode {1:04o}, expected 0700)")]
    Open(PathBuf, u32),
    /// Others could write in it and left a file there: that file and its owner.
    #[error(
        "{0} belongs to uid {1} and is in a directory that other users could write to: remove it"
    )]
    Planted(PathBuf, u32),
    /// Others could write in it, and a file in it has a second name, so it may be one of ours from
    /// elsewhere.
    #[error(
        "{0} has a second hard link and is in a directory that other users could write to: remove \
         it"
    )]
    Linked(PathBuf),
    /// It does not exist.
    #[error("{0} does not exist")]
    Missing(PathBuf),
    /// It does not exist, and cannot be created in the directory above it.
    #[error("{0} does not exist, and canal cannot create a directory in {1}")]
    NoPlace(PathBuf, PathBuf),
    /// Any other error.
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
}

/// An inotify instance, which does not block.
///
/// # Errors
/// The user has too many instances (`fs.inotify.max_user_instances`), or there is no descriptor
/// left.
pub fn inotify() -> io::Result<Inotify> {
    simulated!(|kernel| {
        let instance = kernel.inotify()?;
        // SAFETY: the descriptor is that of an inotify instance, and nothing else owns it.
        Ok(unsafe { Inotify::from_owned_fd(instance) })
    });
    Ok(Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?)
}

/// Opens a file to lock it, and creates it for its owner only if it is missing.
///
/// # Errors
/// It is a symbolic link, or cannot be opened or created.
pub fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(libc::O_NOFOLLOW).open(path)
}

/// The mode bits that let other users write.
const OTHERS_WRITE: u32 = 0o022;

/// The result of a call about a file; `None` if the file does not exist.
pub fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// Whether nothing has the path of a file, or the path leads through a file that is no directory.
pub fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Removes a file if it exists. Returns whether it existed.
pub fn remove_if_there(path: &Path) -> io::Result<bool> {
    Ok(if_there(fs::remove_file(path))?.is_some())
}

/// Opens a file as a mere name: neither to read nor to write it, and no end of a FIFO. Follows no
/// link.
///
/// # Errors
/// Those of openat(2).
pub fn open_path(path: &Path) -> io::Result<OwnedFd> {
    // std cannot: its mask of the access modes contains O_PATH where musl defines it.
    Ok(open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

/// Creates a FIFO for its owner, and its directory, unless they exist.
pub fn make_fifo(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    match mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// How to handle a directory that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfMissing {
    /// It is created with the mode 0700.
    Create,
    /// It is an error.
    Fail,
}

/// Opens a directory without following a link at its end. Checks that the directory belongs to
/// `uid` and that no other user can write in it.
///
/// Links in the directories above it are followed: a user that may write there can exchange
/// everything below it anyway. Other users may read it if its owner wants that (`/run/canal`).
pub fn open_private(path: &Path, uid: u32, missing: IfMissing) -> Result<OwnedFd, DirError> {
    // With a trailing slash or dot, the call would follow a link.
    let path = &path.components().collect::<PathBuf>();
    if missing == IfMissing::Create {
        match mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(Errno::NOENT) => {
                let parent = path.parent().unwrap_or(path);
                // A file system such as proc also refuses new names this way.
                return Err(match parent.is_dir() {
                    true => DirError::NoPlace(path.clone(), parent.to_owned()),
                    false => DirError::Missing(parent.to_owned()),
                });
            }
            Err(error) => return Err(io_error(path, error)),
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = open(path, flags, Mode::empty()).map_err(|error| not_opened(path, uid, error))?;
    let stat = fstat(&dir).map_err(|error| io_error(path, error))?;
    if stat.st_uid != uid {
        return Err(DirError::Foreign(path.clone(), stat.st_uid, uid));
    }
    let mode = stat.st_mode & 0o7777;
    if mode & OTHERS_WRITE != 0 {
        return Err(DirError::Open(path.clone(), mode));
    }
    Ok(dir)
}

/// Gives a directory of ours the mode 0700. Skips a path that does not exist, is not a directory or
/// belongs to another user: [`open_private`] reports what is wrong with it.
///
/// If others could write in it, its mode is 0500 until everything in it is known to be ours. A
/// process that finds it meanwhile, or after a refusal, therefore does not take it for private and
/// checks it too.
///
/// # Errors
/// An entry belongs to a user other than root and us, or may be a file of ours from elsewhere.
pub fn make_private(path: &Path, uid: u32) -> Result<(), DirError> {
    // With a trailing slash or dot, the call would follow a link.
    let path = &path.components().collect::<PathBuf>();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(dir) = open(path, flags, Mode::empty()) else { return Ok(()) };
    let stat = fstat(&dir).map_err(|error| io_error(path, error))?;
    if stat.st_uid != uid || stat.st_mode & 0o7777 == 0o700 {
        return Ok(());
    }
    // The path of the descriptor keeps pointing at this directory even if its name changes.
    let opened = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
    let set = |mode| {
        let permissions = fs::Permissions::from_mode(mode);
        fs::set_permissions(&opened, permissions).map_err(|error| io_error(path, error))
    };
    if stat.st_mode & (OTHERS_WRITE | 0o700) != 0o700 {
        set(0o500)?;
        check_entries(path, &opened, uid)?;
    }
    set(0o700)
}

/// Checks that everything in a directory of ours belongs to us too.
fn check_entries(path: &Path, opened: &Path, uid: u32) -> Result<(), DirError> {
    let failed = |error: io::Error| io_error(path, error);
    for entry in fs::read_dir(opened).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let named = || path.join(entry.file_name());
        let found = match lstat(entry.path()) {
            Ok(found) => found,
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(io_error(&named(), error)),
        };
        if found.st_uid != uid && found.st_uid != 0 {
            return Err(DirError::Planted(named(), found.st_uid));
        }
        if found.st_mode & libc::S_IFMT == libc::S_IFREG && found.st_nlink > 1 {
            return Err(DirError::Linked(named()));
        }
    }
    Ok(())
}

/// Whether [`open_private`] would accept it, and its owner may use it. Takes one system call, for
/// callers that use the path afterwards anyway.
pub fn is_private(path: &Path, uid: u32) -> bool {
    // With a trailing slash or dot, the call would follow a link.
    let bytes = path.as_os_str().as_bytes();
    let plain = !bytes.ends_with(b"/") && !bytes.ends_with(b"/.");
    plain
        && lstat(path).is_ok_and(|stat| {
            let is_usable = stat.st_mode & (OTHERS_WRITE | 0o700) == 0o700;
            is_dir(&stat) && stat.st_uid == uid && is_usable
        })
}

/// Checks that this is a directory (not a link to one) in which some users cannot create files.
/// Takes one system call.
pub fn check_closed_to_others(path: &Path) -> Result<(), DirError> {
    let owned = || path.to_owned();
    let stat = lstat(path).map_err(|error| match error {
        Errno::NOENT => DirError::Missing(owned()),
        Errno::NOTDIR => DirError::NotADirectory(owned()),
        other => io_error(path, other),
    })?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory if stat.st_mode & libc::S_IWOTH == 0 => Ok(()),
        FileType::Directory => Err(DirError::Open(owned(), stat.st_mode & 0o7777)),
        FileType::Symlink => Err(DirError::Symlink(owned())),
        _ => Err(DirError::NotADirectory(owned())),
    }
}

/// Calls a function with a path as a C string. (nix reserves a kilobyte of stack for each path,
/// more than the rest of a short program uses.)
///
/// # Errors
/// EINVAL if the path contains a NUL; otherwise the errors of the call.
pub fn with_c_str<T>(path: &Path, call: impl FnOnce(&CStr) -> nix::Result<T>) -> nix::Result<T> {
    call(&CString::new(path.as_os_str().as_bytes()).map_err(|_| nix::errno::Errno::EINVAL)?)
}

fn io_error(path: &Path, error: impl Into<io::Error>) -> DirError {
    DirError::Io(path.to_owned(), error.into())
}

/// Explains why a directory could not be opened, so that the user knows what to change.
fn not_opened(path: &Path, uid: u32, error: Errno) -> DirError {
    let owned = path.to_owned();
    match (error, lstat(path)) {
        (Errno::NOENT, _) => DirError::Missing(owned),
        // With O_DIRECTORY | O_NOFOLLOW, a link returns ENOTDIR, or ELOOP on kernels that check for
        // it first.
        (Errno::LOOP | Errno::NOTDIR, Ok(stat)) => match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => DirError::Symlink(owned),
            FileType::Directory => io_error(path, error),
            _ => DirError::NotADirectory(owned),
        },
        // For another user's directory with mode 0700, name its owner instead of reporting EACCES.
        (Errno::ACCESS, Ok(stat)) if stat.st_uid != uid => {
            DirError::Foreign(owned, stat.st_uid, uid)
        }
        _ => io_error(path, error),
    }
}

#[cfg(test)]
mod tests;
