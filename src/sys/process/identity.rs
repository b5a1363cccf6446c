//! Who a process is, beyond its number.

use std::io;

use super::started;
use crate::sys::pidfd::{Pidfd, is_gone};

/// A process, beyond the reuse of its number, within one boot and one pid namespace.
///
/// Two that have an inode are the same if they have the same one, whether or not it was looked up when
/// they started: the rule of the table's processes, too.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Its number; 0 if it has none in our pid namespace.
    pub pid: u32,
    /// When it started, in clock ticks since boot; 0 if it has no number here, or if the inode
    /// says it all.
    pub started: u64,
    /// The inode of its pidfd; 0 where the kernel has no pidfs (before Linux 6.9).
    pub inode: u64,
}

impl Identity {
    /// What tells it from others.
    fn telling(&self) -> (u32, u64, u64) {
        (self.pid, self.inode, if self.inode == 0 { self.started } else { 0 })
    }
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.telling() == other.telling()
    }
}

impl Eq for Identity {}

/// Whether pidfs never uses an inode again as long as the machine is up: they have 64 bits then.
const INODES_ARE_UNIQUE: bool = cfg!(target_pointer_width = "64");

/// Who the process of a pidfd is (a zombie is still somebody); `None` if it was reaped.
#[must_use]
pub fn identity(pidfd: &Pidfd) -> Option<Identity> {
    let inode = pidfd.inode();
    let pid = pidfd.pid()?;
    // What /proc tells costs several times as much as all the rest, at each request.
    if pid == 0 || (inode != 0 && INODES_ARE_UNIQUE) {
        return Some(Identity { pid, started: 0, inode });
    }
    Some(Identity { pid, started: start_of(pidfd, pid)?, inode })
}

/// When the process of a pidfd, whose number this is, started; 0 if that cannot be seen, `None` if it
/// was reaped.
fn start_of(pidfd: &Pidfd, pid: u32) -> Option<u64> {
    // Readable or not is told apart only after the check: a number that was given away in between
    // must not look like a process that cannot be seen.
    let started = started(pid);
    (pidfd.pid() == Some(pid)).then_some(started.unwrap_or(0))
}

/// What became of a process that was known before.
#[derive(Debug)]
pub enum Found {
    /// It is there: a pidfd of it (it may have ended).
    Same(Pidfd),
    /// It is gone, or its number is another's.
    Gone,
    /// That cannot be told, and why: it has no number here, or nothing to compare.
    Unknown(io::Error),
}

impl Identity {
    /// Looks for the process again, after a restart of the daemon within the same boot and pid
    /// namespace.
    #[must_use]
    pub fn find(&self) -> Found {
        if self.pid == 0 {
            return unknown("it has no number in this pid namespace");
        }
        let pidfd = match Pidfd::open(self.pid) {
            Ok(pidfd) => pidfd,
            Err(error) if is_gone(&error) => return Found::Gone,
            Err(error) => return Found::Unknown(error),
        };
        let inode = pidfd.inode();
        if self.inode != 0 && inode != 0 {
            // A restart looks for all holders at once, and needs nothing of /proc for them.
            return if self.inode == inode { Found::Same(pidfd) } else { Found::Gone };
        }
        // The inode would be the better witness: start times are only as fine as a clock tick.
        let both = |one: u64, other: u64| (one != 0 && other != 0).then_some(one == other);
        let Some(started) = start_of(&pidfd, self.pid) else { return Found::Gone };
        match both(self.started, started) {
            Some(true) => Found::Same(pidfd),
            Some(false) => Found::Gone,
            None => unknown("its start time cannot be read"),
        }
    }
}

fn unknown(why: &'static str) -> Found {
    Found::Unknown(io::Error::new(io::ErrorKind::Unsupported, why))
}
