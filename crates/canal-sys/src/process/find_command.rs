//! Finds the file of a command along PATH, and explains why a command cannot be run.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::stat::stat;
use nix::unistd::{AccessFlags, access, faccessat};

use crate::process::user::{getegid, geteuid, getgid, getuid};

/// The search path if PATH is not set, as glibc's confstr(_CS_PATH) returns it.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// A command that cannot be run. Its text begins with the command.
#[derive(Debug)]
pub struct NotRun {
    /// The file that was found; without one, the command as it was called.
    pub command: OsString,
    /// The system's error. Its kind is `NotFound` if there is no such command, or if the
    /// interpreter of its file is missing.
    pub error: io::Error,
}

impl NotRun {
    fn new(command: impl Into<OsString>, error: impl Into<io::Error>) -> Self {
        Self { command: command.into(), error: error.into() }
    }

    /// Whether the command, or the interpreter of its file, was not found.
    pub fn is_not_found(&self) -> bool {
        self.error.kind() == io::ErrorKind::NotFound
    }
}

impl fmt::Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.command.to_string_lossy();
        if self.is_not_found() && self.error.get_ref().is_none() {
            return write!(f, "{name}: command not found");
        }
        write!(f, "{name}: cannot be executed: {}", self.error)
    }
}

/// Finds a command as a shell does: a name without `/` along PATH of our environment. As in bash, a
/// folder that cannot be searched holds no command; execvp(3) would report a command that cannot be
/// executed.
///
/// # Errors
/// There is no such file, or it cannot be executed.
pub fn lookup(command: &OsStr) -> Result<PathBuf, NotRun> {
    lookup_along(command, std::env::var_os("PATH").as_deref())
}

fn lookup_along(command: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, NotRun> {
    let not_found = || NotRun::new(command, Errno::ENOENT);
    if command.is_empty() {
        return Err(not_found());
    }
    if command.as_bytes().contains(&b'/') {
        let file = PathBuf::from(command);
        return check(&file).map(|()| file).map_err(|error| NotRun::new(command, error));
    }
    let mut denied = None;
    let path = path.unwrap_or(OsStr::new(DEFAULT_PATH));
    for folder in path.as_bytes().split(|&byte| byte == b':') {
        // An empty folder is the current directory: the name stays as it is.
        let file = Path::new(OsStr::from_bytes(folder)).join(command);
        match check(&file) {
            Ok(()) => return Ok(file),
            Err(Errno::EACCES) if file.exists() => {
                denied.get_or_insert(file);
            }
            Err(Errno::EACCES | Errno::ENOENT | Errno::ESTALE | Errno::ENOTDIR | Errno::ENODEV)
            | Err(Errno::ETIMEDOUT) => {}
            Err(error) => return Err(NotRun::new(file, error)),
        }
    }
    Err(denied.map_or_else(not_found, |file| NotRun::new(file, Errno::EACCES)))
}

/// Whether we may execute a file with our effective ids. Returns the error of execve(2).
fn check(file: &Path) -> nix::Result<()> {
    let file = CString::new(file.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    if stat(&*file)?.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(Errno::EACCES);
    }
    // If effective and real ids are the same, uses the call that every kernel and container has.
    // With the flag, the call is faccessat2 (Linux 5.8), which older containers refuse with EPERM.
    if geteuid() == getuid() && getegid() == getgid() {
        return access(&*file, AccessFlags::X_OK);
    }
    faccessat(AT_FDCWD, &*file, AccessFlags::X_OK, AtFlags::AT_EACCESS)
}

#[cfg(test)]
pub(super) mod tests;
