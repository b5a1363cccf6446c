//! The user of this process and the owners of files, as the kernel knows them.
//!
//! A preloaded library (LD_PRELOAD) can replace any function of the C library. That of fakeroot(1)
//! reports that every user is root and owns every file; canal would then look for the user's locks
//! where root's are. So these functions call the kernel without the C library.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use nix::errno::Errno;
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use rustix::fs::Stat;

/// The effective user.
#[must_use]
pub fn geteuid() -> Uid {
    Uid::from_raw(rustix::process::geteuid().as_raw())
}

/// The real user.
#[must_use]
pub fn getuid() -> Uid {
    Uid::from_raw(rustix::process::getuid().as_raw())
}

/// The effective group.
#[must_use]
pub fn getegid() -> Gid {
    Gid::from_raw(rustix::process::getegid().as_raw())
}

/// The real group.
#[must_use]
pub fn getgid() -> Gid {
    Gid::from_raw(rustix::process::getgid().as_raw())
}

/// The result of a lookup of a user or a group by name. In a chroot without /etc/passwd or
/// /etc/group, musl reports ENOENT, which getpwnam(3) and getgrnam(3) list as one of the errors
/// for a name that does not exist.
///
/// # Errors
/// The lookup failed, so it is unknown whether the name exists.
pub fn found<T>(looked_up: nix::Result<Option<T>>) -> nix::Result<Option<T>> {
    match looked_up {
        Err(Errno::ENOENT | Errno::ESRCH) => Ok(None),
        other => other,
    }
}

/// While this lives, this thread of root uses and creates files as the owner of a directory would.
#[derive(Debug)]
pub struct FilesOf {
    before: (Uid, Gid),
}

impl FilesOf {
    /// Switches to the owner of the directory. `None` if this process is not root, the directory is
    /// root's, or there is none.
    #[must_use]
    pub fn owner_of(dir: &Path) -> Option<Self> {
        let found = stat(dir).ok().filter(|found| geteuid().is_root() && found.st_uid != 0)?;
        // A change of the user also gives up root's power over files, so the group comes first.
        let gid = setfsgid(Gid::from_raw(found.st_gid));
        Some(Self { before: (setfsuid(Uid::from_raw(found.st_uid)), gid) })
    }
}

impl Drop for FilesOf {
    fn drop(&mut self) {
        setfsuid(self.before.0);
        setfsgid(self.before.1);
    }
}

/// Owner and mode of a file, and the other fields of stat(2). Follows links.
///
/// # Errors
/// Those of stat(2).
pub fn stat(path: &Path) -> io::Result<Stat> {
    Ok(rustix::fs::stat(path)?)
}

/// Like [`stat()`], but describes a link itself.
///
/// # Errors
/// Those of lstat(2).
pub fn lstat(path: &Path) -> io::Result<Stat> {
    Ok(rustix::fs::lstat(path)?)
}

/// Like [`stat()`], for an open file.
///
/// # Errors
/// Those of fstat(2).
pub fn fstat(file: impl AsFd) -> io::Result<Stat> {
    Ok(rustix::fs::fstat(file)?)
}

/// Whether this describes a directory.
#[must_use]
pub fn is_dir(stat: &Stat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFDIR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_list_of_names_has_no_names() {
        assert_eq!(found::<u32>(Err(Errno::ENOENT)), Ok(None));
        assert_eq!(found::<u32>(Err(Errno::EIO)), Err(Errno::EIO));
        assert_eq!(found(Ok(Some(1))), Ok(Some(1)));
    }
}
