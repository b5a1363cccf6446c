//! The state of a process, from `/proc/PID/stat` and its cgroups.

use std::fs::{self, File};
use std::io::Read;

use crate::kernel::field;
use crate::pidfd::Pidfd;

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
pub fn run_state(pid: u32) -> RunState {
    Stat::read(pid).map_or(RunState::Gone, |stat| state_by(pid, &stat))
}

fn state_by(pid: u32, stat: &Stat) -> RunState {
    match stat.run_state() {
        RunState::Exiting if stat.threads > 1 => state_of_threads(pid),
        // In stat, a frozen process sleeps.
        RunState::Running if stat.state != 'R' && is_frozen(pid) => RunState::Frozen,
        state => state,
    }
}

/// Whether the process with this pid is busy, as its clients see it.
pub fn activity(pid: u32) -> Activity {
    let Some(stat) = Stat::read(pid) else { return Activity::Idle };
    match (state_by(pid, &stat), stat.state) {
        (RunState::Stopped | RunState::Frozen, _) => Activity::Stopped,
        (_, 'R' | 'D') | (RunState::Exiting, _) => Activity::Busy,
        _ => Activity::Idle,
    }
}

/// When the process started, in clock ticks since boot (field 22 of `/proc/PID/stat`).
pub fn started(pid: u32) -> Option<u64> {
    Stat::read(pid).map(|stat| stat.started)
}

/// The parent's pid (field 4 of `/proc/PID/stat`). 0 if it is in another pid namespace.
pub fn parent(pid: u32) -> Option<u32> {
    Stat::read(pid).map(|stat| stat.parent)
}

/// The state letter of `/proc/PID/stat`, for messages.
pub fn state_letter(pid: u32) -> Option<char> {
    Stat::read(pid).map(|stat| stat.state)
}

/// The end of a process that its parent has not reaped yet: the status of wait(2) (field 52 of
/// `/proc/PID/stat`, Linux 3.5). `None` if it was reaped, or if this process may not see the
/// status.
pub fn zombie_status(pidfd: &Pidfd) -> Option<i32> {
    let pid = pidfd.pid().filter(|&pid| pid != 0)?;
    let stat = Stat::read(pid).filter(|stat| stat.state == 'Z' && pidfd.has_ended())?;
    // The kernel shows 0 to a process that may not see the status, and hides the wait channel from
    // it too.
    let is_seen = stat.exit_code != 0 || stat.wait_channel != 0;
    (is_seen && pidfd.pid() == Some(pid)).then_some(stat.exit_code)
}

/// Room for 52 fields with the maximum number of digits, and the longest name.
const ROOM: usize = 1536;

/// `PF_EXITING` of linux/sched.h: the thread is in do_exit.
const PF_EXITING: u64 = 0x4;

/// The fields of `/proc/PID/stat` that canal uses. Their numbers are those of proc_pid_stat(5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// 3: the state letter.
    pub state: char,
    /// 4: the parent's pid.
    pub parent: u32,
    /// 9: the flags of the thread (of the first thread, in a process's stat).
    flags: u64,
    /// 20: the number of live threads, including a first thread that ended before the others.
    threads: u64,
    /// 22: when it started, in clock ticks since boot.
    pub started: u64,
    /// 35: where it waits in the kernel. 0 if it does not wait, or if this process may not see it.
    wait_channel: u64,
    /// 52: the status of wait(2). 0 before the end, or if this process may not see it.
    exit_code: i32,
}

impl Stat {
    pub(super) fn read(pid: u32) -> Option<Self> {
        simulated!(|kernel| kernel.stat(pid));
        let mut file = File::open(format!("/proc/{pid}/stat")).ok()?;
        // With enough room, the kernel returns everything in one read. Each read is expensive.
        let mut room = [0; ROOM];
        let size = file.read(&mut room).ok()?;
        if size < room.len() {
            return Self::parse(&room[..size]);
        }
        let mut line = room.to_vec();
        file.read_to_end(&mut line).ok()?;
        Self::parse(&line)
    }

    fn parse(line: &[u8]) -> Option<Self> {
        // The name in brackets can contain anything, including brackets, blanks and newlines.
        let end = line.iter().rposition(|&byte| byte == b')')?;
        let rest = std::str::from_utf8(line.get(end + 1..)?).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        let mut skip = |fields_between: usize| fields.nth(fields_between);
        let state = skip(0)?.chars().next()?;
        let parent = skip(0)?.parse().ok()?;
        let flags = skip(4)?.parse().ok()?;
        let threads = skip(10)?.parse().ok()?;
        let started = skip(1)?.parse().ok()?;
        let wait_channel = skip(12)?.parse().ok()?;
        let exit_code = skip(16)?.parse().ok()?;
        Some(Self { state, parent, flags, threads, started, wait_channel, exit_code })
    }

    fn run_state(&self) -> RunState {
        match self.state {
            'Z' | 'X' | 'x' => RunState::Exiting,
            _ if self.flags & PF_EXITING != 0 => RunState::Exiting,
            'T' | 't' => RunState::Stopped,
            _ => RunState::Running,
        }
    }
}

/// The state of a process whose first thread is exiting: the state of the first thread that is not
/// exiting and has no pending SIGKILL.
fn state_of_threads(pid: u32) -> RunState {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return RunState::Gone;
    };
    for thread in threads.flatten() {
        let line = fs::read(thread.path().join("stat")).unwrap_or_default();
        let Some(stat) = Stat::parse(&line) else { continue };
        let state = stat.run_state();
        if state == RunState::Exiting {
            continue;
        }
        let status = fs::read(thread.path().join("status")).unwrap_or_default();
        if !is_killed(&String::from_utf8_lossy(&status)) {
            return state;
        }
    }
    RunState::Exiting
}

/// Whether a thread has a pending SIGKILL, such as exit_group(2) sends to all other threads.
fn is_killed(status: &str) -> bool {
    let pending = field(status, "SigPnd:").and_then(|mask| u64::from_str_radix(mask, 16).ok());
    pending.is_some_and(|mask| mask & (1 << (libc::SIGKILL - 1)) != 0)
}

/// Whether the process's cgroup is frozen: `frozen 1` in `cgroup.events` (cgroup v2, Linux 5.2), or
/// `FROZEN` in `freezer.state` (v1). False if the cgroups are not mounted in the usual places, or
/// if the process's cgroup is outside our cgroup namespace.
fn is_frozen(pid: u32) -> bool {
    let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    cgroups.lines().flat_map(candidates).any(|(path, mark)| {
        fs::read_to_string(path).is_ok_and(|text| text.lines().any(|line| line == mark))
    })
}

/// The files that show the state for one line of `/proc/PID/cgroup` (`ID:CONTROLLERS:PATH`), each
/// with the line that it contains if the cgroup is frozen.
fn candidates(line: &str) -> Vec<(String, &'static str)> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
        return Vec::new();
    };
    // Outside our cgroup namespace: the path would lead to the files of another cgroup.
    if path.split('/').any(|part| part == "..") {
        return Vec::new();
    }
    if controllers.is_empty() {
        // Version 2, mounted alone or next to the controllers of v1.
        let files = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        return files.map(|mount| (format!("{mount}{path}/cgroup.events"), "frozen 1")).into();
    }
    if controllers.split(',').any(|controller| controller == "freezer") {
        return vec![(format!("/sys/fs/cgroup/freezer{path}/freezer.state"), "FROZEN")];
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields 25 to 52.
    const REST: &str = "3 0 0 0 0 0 0 0 0 0 1 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 1536";

    fn parse(name: &str, state: &str, flags: u32) -> Option<Stat> {
        let line = format!(
            "42 ({name}) {state} 7 42 42 34816 42 {flags} 0 0 0 0 1 2 3 4 20 0 3 0 9876543210 1 2 \
             {REST}"
        );
        Stat::parse(line.as_bytes())
    }

    #[test]
    fn a_name_can_hold_anything() {
        for name in ["sh", "a) Z 1 (b", ") T 1 1", "new\nline) X 0", "", "((("] {
            let stat = parse(name, "S", 0).unwrap();
            let expected = Stat {
                state: 'S',
                parent: 7,
                flags: 0,
                threads: 3,
                started: 9_876_543_210,
                wait_channel: 1,
                exit_code: 1536,
            };
            assert_eq!(stat, expected, "{name:?}");
        }
        let mut line = b"42 (\xff\xfe) S 7 42 42 34816 42 0".to_vec();
        line.extend(format!(" 0 0 0 0 1 2 3 4 20 0 3 0 5 1 2 {REST}").bytes());
        assert_eq!(Stat::parse(&line).unwrap().started, 5);
    }

    #[test]
    fn what_is_cut_off_is_no_stat() {
        for line in ["", "42", "42 (sh", "42 (sh)", "42 (sh) S 7 1 2 3 4 5"] {
            assert_eq!(Stat::parse(line.as_bytes()), None, "{line:?}");
        }
    }

    #[test]
    fn letters_and_flags_give_the_state() {
        let state = |letter, flags| parse("x", letter, flags).unwrap().run_state();
        assert_eq!(state("S", 0), RunState::Running);
        assert_eq!(state("R", 0x40_0000), RunState::Running);
        assert_eq!(state("D", 0), RunState::Running);
        assert_eq!(state("T", 0), RunState::Stopped);
        assert_eq!(state("t", 0), RunState::Stopped);
        assert_eq!(state("Z", 0), RunState::Exiting);
        assert_eq!(state("X", 0), RunState::Exiting);
        assert_eq!(state("D", 0x40_0004), RunState::Exiting);
    }

    #[test]
    fn a_killed_thread_is_seen() {
        assert!(is_killed("Name:\tx\nSigPnd:\t0000000000000100\nShdPnd:\t0\n"));
        assert!(!is_killed("Name:\tx\nSigPnd:\t0000000000000000\nShdPnd:\t0\n"));
        assert!(!is_killed(""));
    }

    #[test]
    fn each_kind_of_cgroup_has_its_file() {
        let paths = |line| candidates(line).into_iter().map(|(path, _)| path).collect::<Vec<_>>();
        assert_eq!(
            paths("0::/user.slice/a:b"),
            [
                "/sys/fs/cgroup/user.slice/a:b/cgroup.events",
                "/sys/fs/cgroup/unified/user.slice/a:b/cgroup.events"
            ]
        );
        assert_eq!(paths("5:freezer:/x"), ["/sys/fs/cgroup/freezer/x/freezer.state"]);
        assert!(paths("3:cpu,cpuacct:/x").is_empty());
        assert!(paths("0::/../elsewhere").is_empty());
        assert!(paths("junk").is_empty());
    }
}
