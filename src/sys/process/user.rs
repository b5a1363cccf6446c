//! The user of this process and the owners of files, as the kernel knows them.
//!
//! A preloaded library (LD_PRELOAD) can replace any function of the C library. That of fakeroot(1)
//! reports that every user is root and owns every file; canal would then look for the user's locks
//! where root's are. So these functions call the kernel without the C library.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use nix::unistd::{Gid, Uid};
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
