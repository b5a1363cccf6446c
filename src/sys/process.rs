//! What /proc tells of a process and of this machine.

use super::pidfd::Pidfd;

/// What a process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// It runs or sleeps.
    Running,
    /// It was stopped by a signal or a tracer (state T or t).
    Stopped,
    /// Its cgroup is frozen.
    Frozen,
    /// It is on its way out (PF_EXITING), or a zombie.
    Exiting,
    /// There is no such process.
    Gone,
}

/// The state of a process by its number.
#[must_use]
pub fn run_state(pid: u32) -> RunState {
    let _ = pid;
    todo!()
}

/// When the process started, in clock ticks since boot (field 22 of `/proc/PID/stat`).
#[must_use]
pub fn started(pid: u32) -> Option<u64> {
    let _ = pid;
    todo!()
}

/// The parent's number (field 4 of `/proc/PID/stat`).
#[must_use]
pub fn parent(pid: u32) -> Option<u32> {
    let _ = pid;
    todo!()
}

/// The command line, its arguments joined by blanks (control characters shown as `?`), or the
/// short name in brackets where there is none.
#[must_use]
pub fn command_line(pid: u32) -> Option<String> {
    let _ = pid;
    todo!()
}

/// The state letter of `/proc/PID/stat`, for messages.
#[must_use]
pub fn state_letter(pid: u32) -> Option<char> {
    let _ = pid;
    todo!()
}

/// The real user of the process that a pidfd names (its number is checked before and after).
#[must_use]
pub fn uid_of(pidfd: &Pidfd) -> Option<u32> {
    let _ = pidfd;
    todo!()
}

/// What makes process numbers comparable: the boot and the namespaces they were read in.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Origin {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// The inode of the pid namespace.
    pub pid_namespace: u64,
    /// The inode of the time namespace (start times and CLOCK_BOOTTIME depend on it); 0 if none.
    pub time_namespace: u64,
}

impl Origin {
    /// Reads that of this process.
    pub fn read() -> std::io::Result<Self> {
        todo!()
    }
}
