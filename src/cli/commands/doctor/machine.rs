//! Checks the machine: its kernel, the limits of this process, its clock, the disks of the journal
//! and the durable state, and whether cron and the commands of ssh(1), which lack the PATH of a
//! login, find `canal`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::sys::statvfs::{FsFlags, statvfs};

use super::finding::Finding;
use crate::cli::short;
use crate::protocol::DaemonInfo;
use crate::protocol::paths::Place;
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
    let release = nix::sys::utsname::uname().map(|it| it.release().to_string_lossy().into_owned());
    let release = release.unwrap_or_else(|_| "of an unknown version".to_owned());
    let note = |is_so: bool, text: &str| is_so.then(|| Finding::note("kernel", text));
    let mut findings = Vec::new();
    match Pidfd::open(std::process::id()) {
        Ok(own) => {
            findings.push(Finding::fine("kernel", format!("Linux {release}")));
            let missing =
                "older than 6.5, so the daemon identifies a client by its pid and start time";
            findings.extend(note(!peer::has_peer_pidfd(), missing));
            let missing = "older than 6.9, so after a restart the daemon identifies a process by \
                           its pid and start time";
            findings.extend(note(own.inode() == 0, missing));
        }
        Err(error) => {
            let message = format!("Linux {release} provides no pidfds: {error}");
            findings.push(Finding::problem("kernel", message, FORBIDDEN_HINT));
        }
    }
    findings.extend(proc());
    let is_hidden = std::env::var_os("CANAL_KERNEL").is_some();
    findings.extend(note(is_hidden, "CANAL_KERNEL hides newer features from canal"));
    findings.push(match fds::limit() {
        Ok(limit) if limit < DESCRIPTORS_MIN => Finding::problem(
            "limits",
            format!("the limit on open files is {limit}, but a daemon needs {DESCRIPTORS_MIN}"),
            "raise it with `ulimit -n 1024`",
        ),
        Ok(limit) => Finding::fine("limits", format!("the limit on open files is {limit}")),
        Err(why) => Finding::note("limits", format!("the limit on open files is unknown: {why}")),
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
    findings.extend(daemon.and_then(|daemon| {
        let since = daemon.since.parse::<Timestamp>().ok()?;
        let since_ms = u64::try_from(since.as_millisecond()).unwrap_or(0);
        jump(since_ms, now_ms.saturating_sub(age_ms(daemon.pid)?))
    }));
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
        let state = state.display();
        let what = format!("{state} is in memory: stored sizes and leases do not survive a reboot");
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
        let hint = "free some space: the daemon refuses new requests when the disk is full";
        return Finding::problem(about, message, hint);
    }
    Finding::fine(about, format!("{shown} has {} MiB left", bytes / MIB))
}

/// The PATH of a crontab that sets none. Users' crontabs do not inherit the PATH of `/etc/crontab`.
const PATH_OF_CRON: &str = "/usr/bin:/bin";

/// The PATH of a command that sshd runs without a login, unless configured otherwise. Builds of
/// sshd differ, but all of them include these directories.
const PATH_OF_SSH: &str = "/usr/bin:/bin";

const CRONTAB: &str = "/etc/crontab";
const ENVIRONMENT: &str = "/etc/environment";

/// At least one of these exists if cron is installed.
const CRON_IS_THERE: [&str; 4] = [CRONTAB, "/etc/cron.d", "/usr/sbin/cron", "/usr/sbin/crond"];

/// At least one of these exists if sshd is installed.
const SSHD_IS_THERE: [&str; 2] = ["/etc/ssh/sshd_config", "/usr/sbin/sshd"];

pub(super) fn command_path() -> Vec<Finding> {
    let Ok(own) = std::env::current_exe() else { return Vec::new() };
    let is_there = |paths: &[&str]| paths.iter().any(|path| Path::new(path).exists());
    let mut findings = Vec::new();
    let stated = |file| fs::read_to_string(file).ok().and_then(|text| stated_path(&text));
    if is_there(&CRON_IS_THERE) {
        findings.push(of_crontab("a crontab", PATH_OF_CRON, &own));
        let other = stated(CRONTAB).filter(|path| path != PATH_OF_CRON);
        findings.extend(other.map(|path| of_crontab(CRONTAB, &path, &own)));
    }
    if is_there(&SSHD_IS_THERE) {
        findings.push(of_ssh(stated(ENVIRONMENT).as_deref(), &own));
    }
    findings
}

/// The program that a crontab with this PATH finds.
fn of_crontab(who: &str, path: &str, own: &Path) -> Finding {
    let message = format!("commands in {who} find no `canal`: its PATH is {}", folders(path));
    let shown = own.display();
    let hint = format!("use the full path {shown} in the crontab, or set PATH at its top");
    let nothing = Finding::advice("cron", message, hint);
    finding(nothing, &format!("commands in {who} find"), path, own)
}

/// The program that `ssh HOST canal …` finds. `stated` is the PATH in `/etc/environment`.
fn of_ssh(stated: Option<&str>, own: &Path) -> Finding {
    let (path, shown) = (stated.unwrap_or(PATH_OF_SSH), own.display());
    let message = format!(
        "`ssh HOST canal` may not find `canal`: without a login shell, PATH is {} unless the \
         user's shell adds to it",
        folders(path)
    );
    let hint = format!(
        "use the full path {shown} in such commands; to check, run `ssh HOST 'command -v canal'`"
    );
    finding(Finding::advice("ssh", message, hint), "`ssh HOST canal` finds", path, own)
}

/// The program that a PATH finds; `nothing` if it finds none.
fn finding(nothing: Finding, finds: &str, path: &str, own: &Path) -> Finding {
    let Some((file, is_own)) = find(path, own) else { return nothing };
    let message = format!("{finds} {}", file.display());
    if is_own {
        return Finding::fine(nothing.about, message);
    }
    let message = format!("{message}, which is not this program ({})", own.display());
    let hint = "remove one of the two, or write the full path of the right one";
    Finding::advice(nothing.about, message, hint)
}

/// The directories of a PATH, as text that can be folded to any width.
fn folders(path: &str) -> String {
    path.replace(':', ", ")
}

/// The first executable `canal` in a PATH, and whether it is this program.
fn find(path: &str, own: &Path) -> Option<(PathBuf, bool)> {
    let folders = path.split(':').filter(|dir| !dir.is_empty());
    let is_program =
        |it: &PathBuf| fs::metadata(it).is_ok_and(|it| it.is_file() && it.mode() & 0o111 != 0);
    let file = folders.map(|dir| Path::new(dir).join("canal")).find(is_program)?;
    let is_own = process::file_of(own) == process::file_of(&file);
    Some((file, is_own))
}

/// The PATH in a file of assignments. The last one counts.
fn stated_path(text: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == "PATH").then(|| value.trim().trim_matches(['"', '\'']).to_owned())
    });
    lines.next_back().filter(|path| !path.is_empty())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

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

    #[test]
    fn the_first_program_of_the_path_counts() {
        let dir = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let folder = dir.path().join(name);
            fs::create_dir(&folder).unwrap();
            folder
        };
        let [one, two, three, none] = ["one", "two", "three", "none"].map(folder);
        for (folder, mode) in [(&one, 0o755), (&two, 0o755), (&three, 0o644)] {
            let file = folder.join("canal");
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        }
        let link = folder("link");
        symlink(one.join("canal"), link.join("canal")).unwrap();
        let own = one.join("canal");
        let in_path = |folders: &[&PathBuf]| {
            let path: Vec<_> = folders.iter().map(|it| it.display().to_string()).collect();
            find(&path.join(":"), &own)
        };
        assert_eq!(in_path(&[&none, &three]), None, "it cannot be executed");
        assert_eq!(in_path(&[&none, &one, &two]), Some((own.clone(), true)));
        assert_eq!(in_path(&[&two, &one]), Some((two.join("canal"), false)));
        assert_eq!(in_path(&[&link, &two]), Some((link.join("canal"), true)), "a link to it");
        let nothing = of_crontab("a crontab", &none.display().to_string(), &own);
        assert_eq!(nothing.level, Level::Note);
        let hint = nothing.hint.unwrap();
        assert!(hint.starts_with(&format!("use the full path {}", own.display())), "{hint}");
        assert_eq!(of_ssh(Some(&one.display().to_string()), &own).level, Level::Fine);
    }

    #[test]
    fn the_last_path_of_a_file_counts() {
        let text = "# PATH=/no\nSHELL=/bin/sh\nPATH=/a:/b\n17 * * * * root cd / && PATH=/c x\n";
        assert_eq!(stated_path(text).as_deref(), Some("/a:/b"));
        assert_eq!(stated_path("PATH = '/a'\nPATH=\"/usr/bin\"\n").as_deref(), Some("/usr/bin"));
        for none in ["", "XPATH=/a\n", "PATH=\n"] {
            assert_eq!(stated_path(none), None, "{none}");
        }
    }
}
