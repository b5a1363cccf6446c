//! What the log does to the disk: the few calls through which every change goes.
//!
//! Tests stop the log before, after and within each of them (see `fault`).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::errno::Errno;

/// Writes all of `bytes` at `at`.
pub(in crate::log) fn write(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    #[cfg(test)]
    if let Some(torn) = fault::torn(bytes.len()) {
        file.write_all_at(&bytes[..torn], at)?;
        return Err(fault::stopped());
    }
    file.write_all_at(bytes, at)
}

/// Writes zeros within one page. No kill tears that: the kernel looks for signals only between two
/// pages (`generic_perform_write` in mm/filemap.c).
pub(super) fn wipe(file: &File, zeros: &[u8], at: u64) -> io::Result<()> {
    #[cfg(test)]
    fault::step()?;
    file.write_all_at(zeros, at)
}

/// Writes the first bytes of a file, which no kill tears (see [`super::header`]).
pub(super) fn write_mark(file: &File, mark: &[u8]) -> io::Result<()> {
    #[cfg(test)]
    fault::step()?;
    file.write_all_at(mark, 0)
}

/// Gives a file another name, in place of what had it.
pub(in crate::log) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    #[cfg(test)]
    fault::step()?;
    fs::rename(from, to)
}

/// Takes a name from a file.
pub(in crate::log) fn remove(path: &Path) -> io::Result<()> {
    #[cfg(test)]
    fault::step()?;
    fs::remove_file(path)
}

/// Makes a file shorter.
pub(in crate::log) fn set_len(file: &File, len: u64) -> io::Result<()> {
    #[cfg(test)]
    fault::step()?;
    file.set_len(len)
}

/// Brings what was written to a file, and its length, onto the disk.
pub(in crate::log) fn sync(file: &File) -> io::Result<()> {
    #[cfg(test)]
    fault::step()?;
    file.sync_data()
}

/// Brings the names in a directory onto the disk.
pub(in crate::log) fn sync_dir(dir: &Path) -> io::Result<()> {
    #[cfg(test)]
    fault::step()?;
    File::open(dir)?.sync_all()
}

/// Allocates the first `len` bytes of a file, without changing its content.
///
/// # Errors
/// The disk is full, the user's quota or limit of file size is reached, or another system error.
pub(super) fn allocate(file: &File, len: u64) -> io::Result<()> {
    #[cfg(test)]
    fault::allocation(len)?;
    if fs2::FileExt::allocate(file, len).is_ok() {
        return Ok(());
    }
    // posix_fallocate returns its error and leaves errno alone, where fs2 looks for it: ask again
    // to learn it. tmpfs gives up with EINTR at a signal.
    let size = libc::off_t::try_from(len).map_err(io::Error::other)?;
    loop {
        match nix::fcntl::posix_fallocate(file, 0, size) {
            Ok(()) => return Ok(()),
            Err(Errno::EINTR) => {}
            // A file system that cannot; glibc then writes, musl does not.
            Err(Errno::EOPNOTSUPP) => return fill(file, len),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Allocates by writing zeros behind the content.
fn fill(file: &File, len: u64) -> io::Result<()> {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut at = file.metadata()?.len();
    while at < len {
        let zeros = ZEROS.get(..(len - at) as usize).unwrap_or(&ZEROS);
        file.write_all_at(zeros, at)?;
        at += zeros.len() as u64;
    }
    Ok(())
}

/// Faults that tests put in: the thread's journals stop as if killed, or find the disk full.
#[cfg(test)]
pub(crate) mod fault {
    use std::cell::Cell;
    use std::io;

    thread_local! {
        /// How many bytes and steps may still be done.
        static BUDGET: Cell<Option<u64>> = const { Cell::new(None) };
        /// The longest file that can be allocated.
        static DISK: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Runs `work` and stops it after `budget` bytes and steps; returns whether it was stopped.
    pub(crate) fn after<T>(budget: u64, work: impl FnOnce() -> T) -> (T, bool) {
        BUDGET.set(Some(budget));
        let done = work();
        (done, BUDGET.replace(None) == Some(0))
    }

    /// Lets no file be allocated beyond `len` from now on.
    pub(in super::super) fn disk(len: Option<u64>) {
        DISK.set(len);
    }

    pub(super) fn stopped() -> io::Error {
        io::Error::other("stopped by the test")
    }

    /// How many of `size` bytes are written before the stop; `None` if it does not come.
    pub(super) fn torn(size: usize) -> Option<usize> {
        let budget = BUDGET.get()?;
        let left = budget.saturating_sub(size as u64);
        BUDGET.set(Some(left));
        (left == 0).then_some(size.min(budget as usize))
    }

    pub(super) fn step() -> io::Result<()> {
        let Some(budget) = BUDGET.get() else { return Ok(()) };
        BUDGET.set(Some(budget.saturating_sub(1)));
        if budget > 1 { Ok(()) } else { Err(stopped()) }
    }

    pub(super) fn allocation(len: u64) -> io::Result<()> {
        step()?;
        match DISK.get() {
            Some(disk) if len > disk => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }
}
