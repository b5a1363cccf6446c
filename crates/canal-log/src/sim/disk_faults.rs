//! A faulty disk: the thread's logs stop as if killed, or find the disk full or failing.

use std::cell::Cell;
use std::fs::File;
use std::io;

use crate::journal::format::LIVE;

thread_local! {
    /// The number of bytes and steps until the fault.
    static BUDGET: Cell<Option<u64>> = const { Cell::new(None) };
    /// The longest file that can be allocated.
    static LENGTH_MAX: Cell<Option<u64>> = const { Cell::new(None) };
    static MISREPORTED: Cell<bool> = const { Cell::new(false) };
    static DISK: Cell<Disk> =
        const { Cell::new(Disk { is_full: false, fails_after: None, written: 0 }) };
}

/// A faulty disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk {
    /// No file can grow.
    pub is_full: bool,
    /// After this number of bytes and steps, every call fails; a write then is partial.
    pub fails_after: Option<u64>,
    /// The number of bytes and steps so far.
    pub written: u64,
}

/// Runs `work` on a faulty disk.
pub fn on<T>(disk: &mut Disk, work: impl FnOnce() -> T) -> T {
    DISK.set(*disk);
    let done = work();
    *disk = DISK.take();
    done
}

/// Runs `work`; the first mark that puts a file into use is written, but reported as not
/// written.
#[cfg(test)]
pub(crate) fn misreported_commit<T>(work: impl FnOnce() -> T) -> T {
    MISREPORTED.set(true);
    let done = work();
    assert!(!MISREPORTED.take(), "no mark was written");
    done
}

pub(crate) fn after_mark(mark: &[u8]) -> io::Result<()> {
    let misreported = *mark == LIVE && MISREPORTED.take();
    if misreported { Err(failed()) } else { Ok(()) }
}

/// Runs `work` and stops it after `budget` bytes and steps; returns whether it was stopped.
pub fn after<T>(budget: u64, work: impl FnOnce() -> T) -> (T, bool) {
    BUDGET.set(Some(budget));
    let done = work();
    (done, BUDGET.replace(None) == Some(0))
}

/// From now on, no file can be allocated beyond `len`.
#[cfg(test)]
pub(crate) fn disk(len: Option<u64>) {
    LENGTH_MAX.set(len);
}

fn stopped() -> io::Error {
    io::Error::other("stopped by the test")
}

fn failed() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

fn full() -> io::Error {
    io::ErrorKind::StorageFull.into()
}

/// Counts bytes or a step. Returns the disk.
fn count(size: u64) -> Disk {
    let disk = DISK.get();
    let disk = Disk { written: disk.written + size, ..disk };
    DISK.set(disk);
    disk
}

/// How many of `size` bytes are written before the fault, and its error; `None` without a
/// fault.
pub(crate) fn torn(file: &File, size: usize, at: u64) -> Option<(usize, io::Error)> {
    let disk = count(size as u64);
    if let Some(budget) = BUDGET.get() {
        let left = budget.saturating_sub(size as u64);
        BUDGET.set(Some(left));
        if left == 0 {
            return Some((size.min(budget as usize), stopped()));
        }
    }
    let len = file.metadata().map_or(0, |it| it.len());
    if disk.is_full && at + size as u64 > len {
        let room = usize::try_from(len.saturating_sub(at)).unwrap_or(usize::MAX);
        return Some((room.min(size), full()));
    }
    let left = disk.fails_after?;
    let torn = (left <= size as u64).then(|| size.min(left as usize));
    let fails_after = Some(left.saturating_sub(size as u64));
    DISK.set(Disk { fails_after, ..disk });
    torn.map(|torn| (torn, failed()))
}

pub(crate) fn step() -> io::Result<()> {
    let disk = count(1);
    if let Some(budget) = BUDGET.get() {
        BUDGET.set(Some(budget.saturating_sub(1)));
        if budget <= 1 {
            return Err(stopped());
        }
    }
    let Some(left) = disk.fails_after else { return Ok(()) };
    DISK.set(Disk { fails_after: Some(left.saturating_sub(1)), ..disk });
    if left > 1 { Ok(()) } else { Err(failed()) }
}

pub(crate) fn allocation(file: &File, len: u64) -> io::Result<()> {
    step()?;
    let is_longer = || file.metadata().is_ok_and(|it| it.len() < len);
    match LENGTH_MAX.get() {
        Some(most) if len > most => Err(full()),
        _ if DISK.get().is_full && is_longer() => Err(full()),
        _ => Ok(()),
    }
}
