//! What makes pids comparable.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

/// The number that the kernel gives the first pid namespace (PROC_PID_INIT_INO).
pub const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// What makes pids comparable: the boot and the namespaces in which they were read.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Origin {
    /// `/proc/sys/kernel/random/boot_id`.
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
    /// /proc is not mounted. The message names the file.
    pub fn read() -> io::Result<Self> {
        #[cfg(test)]
        if let Some(kernel) = crate::sys::kernel::simulated::current() {
            return Ok(kernel.origin());
        }
        let boot_id = named("/proc/sys/kernel/random/boot_id", |path| fs::read_to_string(path))?;
        let inode = |path: &str| fs::metadata(path).map(|file| file.ino());
        let pid_namespace = named("/proc/self/ns/pid", inode)?;
        // Linux 5.6, and only if it was configured.
        let time_namespace = match inode("/proc/self/ns/time") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            other => named("/proc/self/ns/time", |_| other)?,
        };
        Ok(Self { boot_id: boot_id.trim_end().to_owned(), pid_namespace, time_namespace })
    }

    /// Whether the process that has this pid here is the machine's own init, which never ends. The
    /// process 1 of a container ends with the container.
    #[must_use]
    pub fn is_init_of_machine(&self, pid: u32) -> bool {
        pid == 1 && self.pid_namespace == FIRST_PID_NAMESPACE
    }
}

fn named<T>(path: &str, read: impl FnOnce(&str) -> io::Result<T>) -> io::Result<T> {
    read(path).map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))
}
