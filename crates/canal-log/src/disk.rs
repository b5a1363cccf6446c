//! Every change of the log and of the daemon's records on the disk, in a few calls, and how their
//! files are opened.
//!
//! Tests stop the changes before, after and within each call (see `sim::disk_faults`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;

#[cfg(any(test, feature = "sim"))]
use crate::sim::disk_faults as fault;
use canal_sys::private_dir::if_there;

/// Writes all of `bytes` at `at`.
pub fn write(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    #[cfg(any(test, feature = "sim"))]
    if let Some((torn, error)) = fault::torn(file, bytes.len(), at) {
        file.write_all_at(&bytes[..torn], at)?;
        return Err(error);
    }
    file.write_all_at(bytes, at)
}

/// Writes all of `bytes` at the end of a file that was opened for appending.
pub fn append(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    #[cfg(any(test, feature = "sim"))]
    if let Some((torn, error)) = fault::torn(file, bytes.len(), file.metadata()?.len()) {
        file.write_all(&bytes[..torn])?;
        return Err(error);
    }
    file.write_all(bytes)
}

/// Fails if a test stops the disk here.
#[cfg_attr(not(any(test, feature = "sim")), expect(clippy::unnecessary_wraps))]
fn step() -> io::Result<()> {
    #[cfg(any(test, feature = "sim"))]
    fault::step()?;
    Ok(())
}

/// Writes zeros within one page. No kill tears that: the kernel checks for signals only between two
/// pages (`generic_perform_write` in mm/filemap.c).
pub(crate) fn wipe(file: &File, zeros: &[u8], at: u64) -> io::Result<()> {
    step()?;
    file.write_all_at(zeros, at)
}

/// Writes the first bytes of a file, which no kill tears (see [`crate::journal::format`]).
pub(crate) fn write_mark(file: &File, mark: &[u8]) -> io::Result<()> {
    step()?;
    file.write_all_at(mark, 0)?;
    #[cfg(any(test, feature = "sim"))]
    fault::after_mark(mark)?;
    Ok(())
}

/// Renames a file, replacing any file of the new name.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    step()?;
    fs::rename(from, to)
}

/// Removes a name of a file.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    step()?;
    fs::remove_file(path)
}

/// Makes a file shorter.
pub(crate) fn set_len(file: &File, len: u64) -> io::Result<()> {
    step()?;
    file.set_len(len)
}

/// Syncs a file's content and length to the disk.
pub fn sync(file: &File) -> io::Result<()> {
    step()?;
    file.sync_data()
}

/// Syncs the names in a directory to the disk.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    step()?;
    File::open(dir)?.sync_all()
}

/// Allocates the first `len` bytes of a file, without changing its content.
///
/// # Errors
/// The disk is full, the user's quota or limit of file size is reached, or another system error.
pub(crate) fn allocate(file: &File, len: u64) -> io::Result<()> {
    #[cfg(any(test, feature = "sim"))]
    fault::allocation(file, len)?;
    let size = libc::off_t::try_from(len).map_err(io::Error::other)?;
    loop {
        match nix::fcntl::posix_fallocate(file, 0, size) {
            Ok(()) => return Ok(()),
            // On tmpfs, at a signal.
            Err(Errno::EINTR) => {}
            // A file system without support; glibc then writes, musl does not.
            Err(Errno::EOPNOTSUPP) => return fill(file, len),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Allocates by writing zeros after the content.
fn fill(mut file: &File, len: u64) -> io::Result<()> {
    let missing = len.saturating_sub(file.seek(SeekFrom::End(0))?);
    io::copy(&mut io::repeat(0).take(missing), &mut file).map(drop)
}

/// Opens a regular file; `None` if it does not exist.
pub(crate) fn open_plain(options: &mut OpenOptions, path: &Path) -> io::Result<Option<File>> {
    let opened = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let Some(file) = if_there(opened)? else { return Ok(None) };
    if file.metadata()?.is_file() {
        return Ok(Some(file));
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
}

/// Whether a path leads to this file.
pub fn leads_to(path: &Path, file: &File) -> io::Result<bool> {
    let (own, there) = (file.metadata()?, fs::symlink_metadata(path)?);
    Ok((there.dev(), there.ino()) == (own.dev(), own.ino()))
}
