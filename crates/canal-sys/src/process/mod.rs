//! Processes: reads /proc, forks children, and executes programs.
//!
//! A pid names a process only briefly. A value that was read by pid is for display, or is checked
//! against a [`Pidfd`] as [`Identity`] does.

mod ancestry;
mod belongings;
mod capabilities;
pub mod child;
pub mod exec;
mod freezer;
mod identity;
mod origin;
mod stat;
pub mod user;

pub use ancestry::{Ancestor, add_descendants, add_orphans_of_group, ancestors};
pub use belongings::{OwnProgram, folder, has_named, has_open, is_link_to, variable, writers_of};
pub use capabilities::{become_user, may_look_into_others};
pub use identity::{Found, Identity, identity};
pub use origin::{FIRST_PID_NAMESPACE, Origin};

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

use super::pidfd::Pidfd;
use canal_text::safe_text::sanitize;
use stat::Stat;

/// The most bytes of a command line that are read.
pub const COMMAND_LINE_MAX: usize = 4096;

/// What a process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// It runs or sleeps.
    Running,
    /// It was stopped by a signal or a tracer (state T or t).
    Stopped,
    /// Its cgroup is frozen.
    Frozen,
    /// It is exiting (PF_EXITING), or a zombie.
    Exiting,
    /// There is no such process (or /proc hides it). Only a pidfd can prove an end.
    Gone,
}

/// Whether a process is busy, as its clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Its first thread runs, is ready to run, or waits for the disk (states R and D), or has
    /// ended. The kernel closes the process's files when its last thread has ended.
    Busy,
    /// It sleeps, or nothing is known about it.
    Idle,
    /// It is stopped, or its cgroup is frozen.
    Stopped,
}

/// The state of the process with this pid. If the first thread of a process ended before the
/// others, this is the state of the others.
#[must_use]
pub fn run_state(pid: u32) -> RunState {
    Stat::read(pid).map_or(RunState::Gone, |stat| state_by(pid, &stat))
}

fn state_by(pid: u32, stat: &Stat) -> RunState {
    match stat.run_state() {
        RunState::Exiting if stat.threads > 1 => stat::state_of_threads(pid),
        // In stat, a frozen process sleeps.
        RunState::Running if stat.state != 'R' && freezer::is_frozen(pid) => RunState::Frozen,
        state => state,
    }
}

/// Whether the process with this pid is busy, as its clients see it.
#[must_use]
pub fn activity(pid: u32) -> Activity {
    let Some(stat) = Stat::read(pid) else { return Activity::Idle };
    match (state_by(pid, &stat), stat.state) {
        (RunState::Stopped | RunState::Frozen, _) => Activity::Stopped,
        (_, 'R' | 'D') | (RunState::Exiting, _) => Activity::Busy,
        _ => Activity::Idle,
    }
}

/// When the process started, in clock ticks since boot (field 22 of `/proc/PID/stat`).
#[must_use]
pub fn started(pid: u32) -> Option<u64> {
    Stat::read(pid).map(|stat| stat.started)
}

/// The pids of all processes of our pid namespace and of those below it. A process that lives
/// during the whole call is included.
///
/// # Errors
/// /proc belongs to another namespace, or hides processes of other users.
pub fn all() -> std::io::Result<Vec<u32>> {
    simulated!(|kernel| Ok(kernel.pids()));
    if std::fs::metadata("/proc/1").is_err() {
        let text = "/proc does not show all processes";
        return Err(std::io::Error::new(std::io::ErrorKind::Unsupported, text));
    }
    visible()
}

/// Like [`all`], without the processes of other users if /proc hides those.
///
/// # Errors
/// /proc belongs to another namespace.
pub fn visible() -> std::io::Result<Vec<u32>> {
    simulated!(|kernel| Ok(kernel.pids()));
    let own = std::fs::read_link("/proc/self")?;
    let number = |name: &OsStr| name.to_str().and_then(|name| name.parse::<u32>().ok());
    if number(own.as_os_str()) != Some(std::process::id()) {
        let text = "/proc does not show the processes of this pid namespace";
        return Err(std::io::Error::new(std::io::ErrorKind::Unsupported, text));
    }
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        all.extend(number(&entry?.file_name()));
    }
    Ok(all)
}

/// The parent's pid (field 4 of `/proc/PID/stat`). 0 if it is in another pid namespace.
#[must_use]
pub fn parent(pid: u32) -> Option<u32> {
    Stat::read(pid).map(|stat| stat.parent)
}

/// The state letter of `/proc/PID/stat`, for messages.
#[must_use]
pub fn state_letter(pid: u32) -> Option<char> {
    Stat::read(pid).map(|stat| stat.state)
}

/// The short name (15 bytes at most). Control characters are replaced by `?`.
#[must_use]
pub fn name(pid: u32) -> Option<String> {
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(sanitize(&String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(&name))))
}

/// The command line, its arguments joined by blanks (control characters are replaced by `?`). If
/// there is none, the short name in brackets. Reads at most [`COMMAND_LINE_MAX`] bytes.
#[must_use]
pub fn command_line(pid: u32) -> Option<String> {
    use std::io::Read;
    let file = std::fs::File::open(format!("/proc/{pid}/cmdline")).ok()?;
    let mut line = Vec::new();
    file.take(COMMAND_LINE_MAX as u64).read_to_end(&mut line).ok()?;
    let end = line.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    if end == 0 {
        return name(pid).map(|name| format!("[{name}]"));
    }
    line.truncate(end);
    for byte in &mut line {
        if *byte == 0 {
            *byte = b' ';
        }
    }
    Some(sanitize(&String::from_utf8_lossy(&line)))
}

/// The first words of the command line, byte for byte, if they are within its first
/// [`COMMAND_LINE_MAX`] bytes. Empty if there is no such process, or if it is a zombie.
#[must_use]
pub fn first_words(pid: u32, count: usize) -> Vec<OsString> {
    use std::io::Read;
    let mut line = Vec::new();
    let file = std::fs::File::open(format!("/proc/{pid}/cmdline"));
    let read = file.map(|file| file.take(COMMAND_LINE_MAX as u64).read_to_end(&mut line));
    if !matches!(read, Ok(Ok(_))) {
        return Vec::new();
    }
    let words = line.split_inclusive(|byte| *byte == 0).filter_map(|word| word.strip_suffix(&[0]));
    words.take(count).map(|word| OsString::from_vec(word.to_vec())).collect()
}

/// The real user of the process of a pidfd. `None` if the process was reaped or is not visible from
/// here.
#[must_use]
pub fn uid_of(pidfd: &Pidfd) -> Option<u32> {
    pidfd.real_uid().or_else(|| uid_by_status(pidfd))
}

/// Reads /proc, for kernels without `PIDFD_GET_INFO`.
fn uid_by_status(pidfd: &Pidfd) -> Option<u32> {
    let pid = pidfd.pid().filter(|&pid| pid != 0)?;
    let status = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    // The process is not reaped yet, so the pid belonged to it all the time.
    if pidfd.pid() != Some(pid) {
        return None;
    }
    let status = String::from_utf8_lossy(&status);
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    uids.split_whitespace().next()?.parse().ok()
}

/// The end of a process that its parent has not reaped yet: the status of wait(2) (field 52 of
/// `/proc/PID/stat`, Linux 3.5). `None` if it was reaped, or if this process may not see the
/// status.
#[must_use]
pub fn zombie_status(pidfd: &Pidfd) -> Option<i32> {
    let pid = pidfd.pid().filter(|&pid| pid != 0)?;
    let stat = Stat::read(pid).filter(|stat| stat.state == 'Z' && pidfd.has_ended())?;
    // The kernel shows 0 to a process that may not see the status, and hides the wait channel from
    // it too.
    let is_seen = stat.exit_code != 0 || stat.wait_channel != 0;
    (is_seen && pidfd.pid() == Some(pid)).then_some(stat.exit_code)
}

/// Makes orphaned descendants of this process its children (PR_SET_CHILD_SUBREAPER, Linux 3.4). The
/// setting survives exec, and children do not inherit it.
pub fn become_subreaper() -> std::io::Result<()> {
    Ok(nix::sys::prctl::set_child_subreaper(true)?)
}

#[cfg(test)]
mod tests;
