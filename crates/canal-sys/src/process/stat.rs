//! `/proc/PID/stat`.

use std::fs::File;
use std::io::Read;

use super::RunState;

/// Room for 52 fields with the maximum number of digits, and the longest name.
const ROOM: usize = 1536;

/// `PF_EXITING` of linux/sched.h: the thread is in do_exit.
const PF_EXITING: u64 = 0x4;

/// The fields that canal uses. Their numbers are those of proc_pid_stat(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    /// 3: the state letter.
    pub(super) state: char,
    /// 4: the parent's pid.
    pub(super) parent: u32,
    /// 9: the flags of the thread (of the first thread, in a process's stat).
    pub(super) flags: u64,
    /// 20: the number of live threads, including a first thread that ended before the others.
    pub(super) threads: u64,
    /// 22: when it started, in clock ticks since boot.
    pub(super) started: u64,
    /// 35: where it waits in the kernel. 0 if it does not wait, or if this process may not see it.
    pub(super) wait_channel: u64,
    /// 52: the status of wait(2). 0 before the end, or if this process may not see it.
    pub(super) exit_code: i32,
}

impl Stat {
    pub(super) fn read(pid: u32) -> Option<Self> {
        simulated!(|kernel| {
            let crate::kernel::simulated::Stat { state, parent, started } = kernel.stat(pid)?;
            let (flags, threads, wait_channel, exit_code) = (0, 1, 0, 0);
            Some(Self { state, parent, flags, threads, started, wait_channel, exit_code })
        });
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

    pub(super) fn run_state(&self) -> RunState {
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
pub(super) fn state_of_threads(pid: u32) -> RunState {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return RunState::Gone;
    };
    for thread in threads.flatten() {
        let line = std::fs::read(thread.path().join("stat")).unwrap_or_default();
        let Some(stat) = Stat::parse(&line) else { continue };
        let state = stat.run_state();
        if state == RunState::Exiting {
            continue;
        }
        let status = std::fs::read(thread.path().join("status")).unwrap_or_default();
        if !is_killed(&String::from_utf8_lossy(&status)) {
            return state;
        }
    }
    RunState::Exiting
}

/// Whether a thread has a pending SIGKILL, such as exit_group(2) sends to all other threads.
fn is_killed(status: &str) -> bool {
    let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    let pending = pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    pending.is_some_and(|mask| mask & (1 << (libc::SIGKILL - 1)) != 0)
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
}
