//! How processes ended: a process that is not the daemon's child leaves its exit status in its
//! pidfd.
//!
//! The kernel stores the status there when the parent has reaped the process, shortly after the
//! daemon learns that it has ended. So the daemon keeps the pidfd until the record is written.
//! Until the process is reaped, which some parents never do, /proc has the status.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use canal_core::FrameId;
use canal_history::Ending;
use canal_sys::pidfd::Pidfd;
use canal_sys::process::zombie_status;

/// The daemon keeps a pidfd for at most one in this many descriptors.
const SHARE_OF_DESCRIPTORS: usize = 16;

/// The most pidfds that the daemon keeps.
const KEPT_MAX: usize = 256;

/// The ended processes of frames that have no record yet.
#[derive(Debug, Default)]
pub(crate) struct Exits {
    of: BTreeMap<FrameId, Arc<Exit>>,
    /// The number of pidfds kept, here and in records that are not written yet.
    kept: Arc<AtomicUsize>,
}

/// A process that has ended.
#[derive(Debug)]
pub(crate) struct Exit {
    pidfd: Pidfd,
    kept: Arc<AtomicUsize>,
}

impl Exits {
    /// Keeps the pidfd of the owner of a frame, if there is room among `descriptors`.
    pub(crate) fn keep(&mut self, frame: FrameId, pidfd: Pidfd, descriptors: usize) {
        if self.kept.load(Ordering::Relaxed) < KEPT_MAX.min(descriptors / SHARE_OF_DESCRIPTORS) {
            self.kept.fetch_add(1, Ordering::Relaxed);
            let exit = Exit { pidfd, kept: Arc::clone(&self.kept) };
            self.of.insert(frame, Arc::new(exit));
        }
    }

    pub(crate) fn get(&self, frame: FrameId) -> Option<Arc<Exit>> {
        self.of.get(&frame).map(Arc::clone)
    }

    pub(crate) fn forget(&mut self, frame: FrameId) {
        self.of.remove(&frame);
    }

    pub(crate) fn forget_all(&mut self) {
        self.of.clear();
    }
}

impl Exit {
    /// How the process ended; `None` if the kernel does not report it, or not yet.
    pub(crate) fn ending(&self) -> Option<Ending> {
        self.pidfd.wait_status().or_else(|| zombie_status(&self.pidfd)).map(ending)
    }
}

impl Drop for Exit {
    fn drop(&mut self) {
        self.kept.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Decodes a status of wait(2).
fn ending(status: i32) -> Ending {
    match u8::try_from(status & 0x7f) {
        Ok(0) => Ending::Exited(u8::try_from(status >> 8 & 0xff).unwrap_or(u8::MAX)),
        Ok(signal) => Ending::Killed(signal),
        Err(_) => Ending::Ended,
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_status_is_read_as_wait_gives_it() {
        assert_eq!(ending(0), Ending::Exited(0));
        assert_eq!(ending(9 << 8), Ending::Exited(9));
        assert_eq!(ending(255 << 8), Ending::Exited(255));
        assert_eq!(ending(9), Ending::Killed(9));
        assert_eq!(ending(11 | 0x80), Ending::Killed(11), "with a core dump");
    }

    #[test]
    fn only_so_many_descriptors_are_kept_and_they_are_given_back() {
        let mut child = Command::new("true").spawn().unwrap();
        let pidfd = Pidfd::open(child.id()).unwrap();
        let mut exits = Exits::default();
        for n in 0..5 {
            exits.keep(FrameId(n), pidfd.try_clone().unwrap(), 3 * SHARE_OF_DESCRIPTORS);
        }
        assert_eq!(exits.of.len(), 3);
        let held = exits.get(FrameId(0));
        exits.forget_all();
        assert_eq!(exits.kept.load(Ordering::Relaxed), 1);
        drop(held);
        assert_eq!(exits.kept.load(Ordering::Relaxed), 0);
        assert!(pidfd.wait_end(60_000));
        assert_eq!(zombie_status(&pidfd), Some(0));
        child.wait().unwrap();
        assert_eq!(zombie_status(&pidfd), None);
        // Only some kernels report the status of a process that has been reaped.
        assert!(matches!(pidfd.wait_status(), None | Some(0)));
    }
}
