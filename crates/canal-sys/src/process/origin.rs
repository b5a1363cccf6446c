//! The boot and the namespaces that make pids comparable.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use crate::pidfd::{Namespace, Pidfd};

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
        let inode = |path: &str| fs::metadata(path).map(|file| file.ino());
        let by_kernel = |namespace| Pidfd::open(std::process::id())?.namespace(namespace);
        let pid_namespace = match inode("/proc/self/ns/pid") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                by_kernel(Namespace::Pid).map_err(|_| error)
            }
            other => other,
        };
        let pid_namespace = named("/proc/self/ns/pid", |_| pid_namespace)?;
        // Linux 5.6, and only if it was configured.
        let time_namespace = match inode("/proc/self/ns/time") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                by_kernel(Namespace::Time).unwrap_or(0)
            }
            other => named("/proc/self/ns/time", |_| other)?,
        };
        Ok(Self { boot_id: boot_id.trim_end().to_owned(), pid_namespace, time_namespace })
    }

    /// Whether both may be from one boot.
    #[must_use]
    pub fn may_share_boot(&self, other: &Self) -> bool {
        self.boot_id == other.boot_id || self.boot_id.is_empty() || other.boot_id.is_empty()
    }

    /// Whether pids and start times mean the same for both.
    #[must_use]
    pub fn shares_numbers(&self, other: &Self) -> bool {
        let of = |origin: &Self| (origin.pid_namespace, origin.time_namespace);
        self.may_share_boot(other) && of(self) == of(other)
    }

    /// Whether the process that has this pid here is the machine's own init, which never ends.
    /// Process 1 of a container ends with the container.
    #[must_use]
    pub fn is_init_of_machine(&self, pid: u32) -> bool {
        pid == 1 && self.pid_namespace == FIRST_PID_NAMESPACE
    }
}

fn named<T>(path: &str, read: impl FnOnce(&str) -> io::Result<T>) -> io::Result<T> {
    read(path).map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))
}
