//! The identity of a process.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

/// A process, identified within one boot and one pid namespace even if its number is reused.
///
/// Two processes with inodes are the same if the inodes are equal, whether or not their start times
/// were looked up.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its number in the daemon's pid namespace; 0 if it has none there.
    pub pid: u32,
    /// The time of its start, in clock ticks since boot (field 22 of `/proc/PID/stat`); 0 if it was
    /// not looked up.
    pub started: u64,
    /// The inode of its pidfd, unique within a boot if the kernel has pidfs (6.9), else 0.
    #[serde(default)]
    pub inode: u64,
}

impl ProcessId {
    /// The values that distinguish it from other processes.
    fn telling(&self) -> (u32, u64, u64) {
        (self.pid, self.inode, if self.inode == 0 { self.started } else { 0 })
    }
}

impl PartialEq for ProcessId {
    fn eq(&self, other: &Self) -> bool {
        self.telling() == other.telling()
    }
}

impl Eq for ProcessId {}

impl Ord for ProcessId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.telling().cmp(&other.telling())
    }
}

impl PartialOrd for ProcessId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for ProcessId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.telling().hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_times_distinguish_processes_only_without_an_inode() {
        let process = |pid, started, inode| ProcessId { pid, started, inode };
        assert_eq!(process(1, 5, 9), process(1, 0, 9), "of a daemon that looked, and of one not");
        assert_ne!(process(1, 5, 9), process(1, 5, 8));
        assert_ne!(process(1, 5, 0), process(1, 6, 0));
        assert_ne!(process(1, 5, 0), process(1, 5, 9));
        assert_ne!(process(1, 0, 9), process(2, 0, 9));
    }
}
