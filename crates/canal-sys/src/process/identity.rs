//! The identity of a process, for which a pid alone is not enough, and the boot and the namespaces
//! that make pids comparable.

use std::os::unix::fs::MetadataExt;
use std::{fs, io};

use super::state::started;
use crate::pidfd::{Namespace, Pidfd, is_gone};
use canal_core::ProcessId;

/// Whether pidfs never reuses an inode while the machine is up: only 64-bit inodes are unique.
const INODES_ARE_UNIQUE: bool = cfg!(target_pointer_width = "64");

/// The identity of the process of a pidfd (a zombie still has one). `None` if it was reaped.
pub fn identity(pidfd: &Pidfd) -> Option<ProcessId> {
    let inode = pidfd.inode();
    let pid = pidfd.pid()?;
    // Reading /proc costs several times as much as the rest of this function, at each request.
    if pid == 0 || (inode != 0 && INODES_ARE_UNIQUE) {
        return Some(ProcessId { pid, started: 0, inode });
    }
    Some(ProcessId { pid, started: start_of(pidfd, pid)?, inode })
}

/// When the process of a pidfd started. `pid` is its pid. 0 if that is not visible, `None` if the
/// process was reaped.
fn start_of(pidfd: &Pidfd, pid: u32) -> Option<u64> {
    // The result of reading the start time counts only after the check: a pid that was reused in
    // between must not look like an invisible process.
    let started = started(pid);
    (pidfd.pid() == Some(pid)).then_some(started.unwrap_or(0))
}

/// The fate of a process that was known before.
#[derive(Debug)]
pub enum Found {
    /// It exists, or is a zombie. Contains its pidfd.
    Same(Pidfd),
    /// It is gone, or another process has its pid.
    Gone,
    /// Unknown, with the reason: it has no pid here, or there is nothing to compare.
    Unknown(io::Error),
}

/// Looks for a process again, after a restart of the daemon within the same boot and pid namespace.
pub fn find(process: ProcessId) -> Found {
    if process.pid == 0 {
        return unknown("it has no pid in this pid namespace");
    }
    let pidfd = match Pidfd::open(process.pid) {
        Ok(pidfd) => pidfd,
        Err(error) if is_gone(&error) => return Found::Gone,
        Err(error) => return Found::Unknown(error),
    };
    let inode = pidfd.inode();
    if process.inode != 0 && inode != 0 {
        // A restart looks for all holders at once. With inodes this reads nothing from /proc.
        return if process.inode == inode { Found::Same(pidfd) } else { Found::Gone };
    }
    // An inode would be better evidence: start times are only as fine as a clock tick.
    match start_of(&pidfd, process.pid) {
        None => Found::Gone,
        Some(started) if started == 0 || process.started == 0 => {
            unknown("cannot read its start time")
        }
        Some(started) if started == process.started => Found::Same(pidfd),
        Some(_) => Found::Gone,
    }
}

fn unknown(why: &'static str) -> Found {
    Found::Unknown(io::Error::new(io::ErrorKind::Unsupported, why))
}

/// The number that the kernel gives the first pid namespace (PROC_PID_INIT_INO).
pub const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The boot and the namespaces in which pids were read. They make pids comparable.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Origin {
    /// `/proc/sys/kernel/random/boot_id`. Empty if it cannot be read: it may be any boot.
    pub boot_id: String,
    /// The inode of the pid namespace.
    pub pid_namespace: u64,
    /// The inode of the time namespace (start times and CLOCK_BOOTTIME depend on it). 0 if none.
    pub time_namespace: u64,
}

impl Origin {
    /// Reads the origin of this process.
    ///
    /// # Errors
    /// /proc is not mounted, and the kernel is older than 6.13. The message names the file.
    pub fn read() -> io::Result<Self> {
        simulated!(|kernel| Ok(kernel.origin()));
        let boot_id = fs::read_to_string(BOOT_ID).unwrap_or_default();
        let pid_namespace = namespace("/proc/self/ns/pid", Namespace::Pid)?;
        // Linux 5.6, and only if it was configured.
        let time_namespace = match namespace("/proc/self/ns/time", Namespace::Time) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            found => found?,
        };
        Ok(Self { boot_id: boot_id.trim_end().to_owned(), pid_namespace, time_namespace })
    }

    /// Whether both may be from one boot.
    pub fn may_share_boot(&self, other: &Self) -> bool {
        self.boot_id == other.boot_id || self.boot_id.is_empty() || other.boot_id.is_empty()
    }

    /// Whether pids and start times mean the same for both.
    pub fn shares_numbers(&self, other: &Self) -> bool {
        let of = |origin: &Self| (origin.pid_namespace, origin.time_namespace);
        self.may_share_boot(other) && of(self) == of(other)
    }

    /// Whether the process that has this pid here is the machine's own init, which never ends.
    /// Process 1 of a container ends with the container.
    pub fn is_init_of_machine(&self, pid: u32) -> bool {
        pid == 1 && self.pid_namespace == FIRST_PID_NAMESPACE
    }
}

/// The inode of a namespace of this process. Without /proc, the kernel may report it.
fn namespace(path: &str, namespace: Namespace) -> io::Result<u64> {
    let by_kernel = || Pidfd::open(std::process::id())?.namespace(namespace);
    fs::metadata(path).map(|file| file.ino()).or_else(|error| match by_kernel() {
        Ok(inode) if error.kind() == io::ErrorKind::NotFound => Ok(inode),
        _ => Err(io::Error::new(error.kind(), format!("{path}: {error}"))),
    })
}
