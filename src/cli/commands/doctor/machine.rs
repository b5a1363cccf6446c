//! Checks the machine: its kernel, the limits of this process, its clock, and the disks of the
//! journal and the durable state.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::sys::statvfs::{FsFlags, statvfs};

use super::finding::Finding;
use crate::cli::short;
use crate::protocol::DaemonInfo;
use crate::protocol::place::Place;
use crate::sys::clock::unix_ms;
use crate::sys::pidfd::{FORBIDDEN_HINT, Pidfd};
use crate::sys::process::{self, Origin};
use crate::sys::{fds, peer};

/// With fewer descriptors, no daemon starts.
const DESCRIPTORS_MIN: u64 = 64;

/// Reports what is missing in /proc.
fn proc() -> Option<Finding> {
    const HINT: &str = "mount /proc here: `mount -t proc proc /proc`";
    match Origin::read() {
        Err(error) => {
            let message = format!(
                "/proc is not mounted ({error}), and before Linux 6.13 no daemon works without it"
            );
            Some(Finding::problem("proc", message, HINT))
        }
        Ok(_) if !Path::new("/proc/self").exists() => {
            let message = "/proc is not mounted: canal works, but shows commands only for \
                           processes that made their own requests, finds no descendants, and \
                           cannot use an engine";
            Some(Finding::advice("proc", message, HINT))
        }
        Ok(origin) if origin.boot_id.is_empty() => {
            let message = "cannot read /proc/sys (perhaps because of the mount option \
                           subset=pid): canal works, but cannot use an engine";
            Some(Finding::advice("proc", message, HINT))
        }
        Ok(_) => None,
    }
}

/// Checks the features of the kernel, how canal replaces missing ones, and the limits of this
/// process.
pub(super) fn kernel() -> Vec<Finding> {
    let release = nix::sys::utsname::uname().map_or_else(
        |_| "of an unknown version".to_owned(),
        |it| it.release().to_string_lossy().into_owned(),
    );
    let mut findings = match Pidfd::open(std::process::id()) {
        Ok(own) => {
            let mut findings = vec![Finding::fine("kernel", format!("Linux {release}"))];
            if !peer::has_peer_pidfd() {
                let missing =
                    "older than 6.5, so the daemon identifies a client by its pid and start time";
                findings.push(Finding::note("kernel", missing));
            }
            if own.inode() == 0 {
                let missing = "older than 6.9, so after a restart the daemon identifies a process \
                               by its pid and start time";
                findings.push(Finding::note("kernel", missing));
            }
            findings
        }
        Err(error) => vec![Finding::problem(
            "kernel",
            format!("Linux {release} provides no pidfds: {error}"),
            FORBIDDEN_HINT,
        )],
    };
    findings.extend(proc());
    if std::env::var_os("CANAL_KERNEL").is_some() {
        findings.push(Finding::note("kernel", "CANAL_KERNEL hides newer features from canal"));
    }
    findings.push(match fds::limit() {
        Ok(limit) if limit < DESCRIPTORS_MIN => Finding::problem(
            "limits",
            format!("the limit on open files is {limit}, but a daemon needs {DESCRIPTORS_MIN}"),
            "raise it with `ulimit -n 1024`",
        ),
        Ok(limit) => Finding::fine("limits", format!("the limit on open files is {limit}")),
        Err(error) => {
            Finding::note("limits", format!("the limit on open files is unknown: {error}"))
        }
    });
    findings
}

/// canal is not older than 2026-01-01, in milliseconds.
const EARLIEST_MS: u64 = 1_767_225_600_000;

/// The year 2100, in milliseconds. Tokens derive from the time of day.
const LATEST_MS: u64 = 4_102_444_800_000;

/// A daemon takes less time than this from its start until it records its start.
const JUMP_MIN: Duration = Duration::from_secs(60);

/// The kernel counts the start times of processes in hundredths of a second.
const TICK_MS: u64 = 10;

/// Checks the clock. No lock depends on it, but the times that canal shows do.
pub(super) fn clock(daemon: Option<&DaemonInfo>) -> Vec<Finding> {
    let now_ms = unix_ms();
    let mut findings = vec![time_of_day(now_ms)];
    if let Some(daemon) = daemon
        && let Some(age_ms) = age_ms(daemon.pid)
        && let Ok(since) = daemon.since.parse::<Timestamp>()
    {
        let since_ms = u64::try_from(since.as_millisecond()).unwrap_or(0);
        findings.extend(jump(since_ms, now_ms.saturating_sub(age_ms)));
    }
    findings
}

fn time_of_day(now_ms: u64) -> Finding {
    const SET: &str = "set it with `timedatectl set-ntp true`";
    match now_ms {
        0..EARLIEST_MS => Finding::problem("clock", "this machine's clock is years behind", SET),
        EARLIEST_MS..LATEST_MS => Finding::fine("clock", "this machine's clock is plausible"),
        _ => Finding::problem("clock", "this machine's clock is many years ahead", SET),
    }
}

/// How long the daemon has run, by a clock that cannot be set. `None` if the process is not visible
/// from here.
fn age_ms(pid: u32) -> Option<u64> {
    process::name(pid).filter(|name| name == "canal")?;
    Some(peer::ticks_now().checked_sub(process::started(pid)?)? * TICK_MS)
}

/// Compares the recorded start of a daemon with the same moment by the present clock. A difference
/// means that the clock was set in between.
fn jump(noted_ms: u64, started_ms: u64) -> Option<Finding> {
    let by = Duration::from_millis(noted_ms.abs_diff(started_ms));
    (by >= JUMP_MIN).then(|| {
        let way = if started_ms > noted_ms { "forward" } else { "back" };
        let message = format!(
            "the clock was set {way} by {} since the daemon started: earlier times and ages are \
             off by that much; locks, waits and leases are not affected",
            short(by)
        );
        Finding::note("clock", message)
    })
}

/// With less space than this, the daemon may refuse the next requests.
const BYTES_MIN: u64 = 16 * 1024 * 1024;

/// With fewer free files than this, the daemon may refuse the next requests.
const FILES_MIN: u64 = 100;

const MIB: u64 = 1024 * 1024;

/// Checks the disks of the journal and the durable state.
pub(super) fn disks(place: &Place) -> Vec<Finding> {
    let state = place.state_dir();
    let mut findings = vec![room("journal", &place.dir)];
    if *state != place.dir {
        findings.push(room("state", state));
    }
    let is_memory = |dir: &Path| statfs(dir).is_ok_and(|it| it.filesystem_type() == TMPFS_MAGIC);
    if existing(state).is_some_and(is_memory) {
        let what = format!(
            "{} is in memory: stored sizes and leases do not survive a reboot",
            state.display()
        );
        findings.push(Finding::note("state", what));
    }
    findings
}

/// The directory, or its nearest ancestor that exists.
fn existing(dir: &Path) -> Option<&Path> {
    dir.ancestors().find(|dir| dir.is_dir())
}

fn room(about: &'static str, dir: &Path) -> Finding {
    let shown = dir.display();
    let Some(disk) = existing(dir) else {
        return Finding::note(about, format!("{shown}: no disk"));
    };
    let found = match statvfs(disk) {
        Ok(found) => found,
        Err(error) => return Finding::note(about, format!("{shown}: {error}")),
    };
    if found.flags().contains(FsFlags::ST_RDONLY) {
        let hint = "mount it writable, or choose another directory with --socket";
        return Finding::problem(about, format!("{shown} is on a read-only disk"), hint);
    }
    let bytes = found.blocks_available().saturating_mul(found.fragment_size());
    // Some file systems do not limit the number of files, and report 0 of 0.
    let few_files = found.files() > 0 && found.files_available() < FILES_MIN;
    if bytes < BYTES_MIN || few_files {
        let files = found.files_available();
        let message = format!("{shown} has room for {} MiB and {files} files", bytes / MIB);
        return Finding::problem(
            about,
            message,
            "free some space: the daemon refuses new requests when the disk is full",
        );
    }
    Finding::fine(about, format!("{shown} has {} MiB left", bytes / MIB))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::commands::doctor::finding::Level;

    #[test]
    fn a_clock_that_was_set_is_noticed_and_a_slow_start_is_not() {
        assert_eq!(jump(1_000_000, 1_000_000), None);
        assert_eq!(jump(1_059_999, 1_000_000), None);
        let said = |noted, started| jump(noted, started).unwrap().message;
        assert!(said(1_000_000, 1_180_000).starts_with("the clock was set forward by 3m00s since"));
        assert!(said(1_180_000, 1_000_000).starts_with("the clock was set back by 3m00s since"));
    }

    #[test]
    fn a_clock_before_canal_was_written_is_a_problem() {
        assert_eq!(time_of_day(0).level, Level::Problem);
        assert_eq!(time_of_day(LATEST_MS).level, Level::Problem);
        assert_eq!(time_of_day(unix_ms()).level, Level::Fine);
    }
}
