//! Starts a daemon that is independent of the process that starts it, and resets what it would
//! inherit.
//!
//! Between fork and exec it calls only async-signal-safe functions, and prepares everything that
//! needs memory before the fork.

use std::ffi::{CString, OsString};
use std::fs;
use std::io::{self, Read};
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libc::{RLIMIT_AS, RLIMIT_CPU, RLIMIT_DATA, RLIMIT_FSIZE, RLIMIT_RSS};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::resource::{Resource, getrlimit};
use rustix::process::getpriority_process;

use super::child::{exit, fork_twice};
use super::exec::{Prepared, entry};
use crate::kernel::own_cgroup;
use crate::pidfd::Pidfd;
use crate::{fds, signals};

/// The descriptor on which the new process reports start-up errors.
pub const REPORT_FD: i32 = 3;

/// The report of a process that ends because another process has taken over its work.
pub const GAVE_WAY: &str = "gave way";

/// The most bytes of a start-up error that are read.
const REPORT_MAX: u64 = 64 * 1024;

/// Starts `program` with `argv`, detached from the caller's job:
///
/// - It forks twice, so that the caller does not get an unknown child.
/// - The new process has its own session, folder `/`, umask 077, and only the environment
///   `environment`.
/// - Descriptors 0 and 1 are /dev/null, 2 is `log` (else /dev/null). All others but 3 are closed.
/// - Signals are at their defaults and unblocked.
/// - Limits, nice value, affinity and the like are reset where allowed. [`notes()`] lists for the
///   new process what was not reset.
///
/// Descriptor 3 of the new process is the write end of a pipe. [`Started::report_within`] returns
/// what the process writes there until it closes the pipe, so that a daemon that cannot start can
/// report why.
///
/// # Errors
/// The process could not be created.
pub fn start(
    program: &Path,
    argv: &[OsString],
    environment: &[(OsString, OsString)],
    log: Option<&Path>,
) -> io::Result<Started> {
    let set = environment.iter().map(|(name, value)| entry(name, value));
    let set = set.collect::<io::Result<Vec<_>>>()?;
    // The child changes the folder, so relative paths are made absolute.
    let file = std::path::absolute(program)?;
    let log = log.map(std::path::absolute).transpose()?;
    let log = log.map(|log| CString::new(log.as_os_str().as_bytes())).transpose()?;
    let prepared = Prepared::new(&file, argv, set)?;
    let plan = Plan { program: prepared, log, highest_fd: fds::highest_open() };
    let (reader, writer) = fds::pipe()?;
    // No handler of ours may run in the children.
    let blocked = signals::block_all();
    // SAFETY: the new process calls only async-signal-safe functions, and never returns.
    let forked = unsafe { fork_twice() };
    if forked == Ok(true) {
        become_program(&plan, writer.as_raw_fd());
    }
    blocked.restore();
    forked?;
    // This function closes our write end when it returns; otherwise the reader would never reach
    // the end.
    let (pipe, program) = (reader.into(), program.to_owned());
    Ok(Started { pipe, bytes: Vec::new(), program, process: None })
}

/// A process that [`start`] started and that has not reported yet.
#[derive(Debug)]
pub struct Started {
    pipe: io::PipeReader,
    bytes: Vec<u8>,
    program: PathBuf,
    /// The process, if its pid arrived in time. Only for messages: if it ended at once, another
    /// process may have its pid.
    pub process: Option<Pidfd>,
}

impl Started {
    /// Waits up to `patience` for the process to write its report and close the pipe; `None` if it
    /// has not by then. An empty report means that the process is up (or was killed before it could
    /// write).
    ///
    /// # Errors
    /// The process could not be created, or the program could not be executed.
    pub fn report_within(&mut self, patience: Duration) -> io::Result<Option<String>> {
        let deadline = Instant::now() + patience;
        let mut buffer = [0; 4096];
        while (self.bytes.len() as u64) < REPORT_MAX {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut polled = [PollFd::new(self.pipe.as_fd(), PollFlags::POLLIN)];
            if fds::poll_within(&mut polled, Some(left))? {
                return Ok(None);
            }
            if polled[0].any() == Some(false) {
                continue;
            }
            match (&self.pipe).read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => {
                    self.bytes.extend_from_slice(&buffer[..length]);
                    if self.process.is_none() {
                        self.process = self.pid().and_then(|pid| Pidfd::open(pid).ok());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let mut report = &self.bytes[..];
        while let Some(record) = Record::take(&mut report) {
            if record.about != PID {
                return Err(record.error(&self.program));
            }
        }
        Ok(Some(String::from_utf8_lossy(report).into_owned()))
    }

    /// The pid of the process; `None` while it is unknown.
    pub fn pid(&self) -> Option<u32> {
        let record = Record::take(&mut &self.bytes[..]).filter(|record| record.about == PID)?;
        u32::try_from(record.number).ok()
    }
}

/// Everything that the child needs, prepared before the fork.
struct Plan {
    program: Prepared,
    log: Option<CString>,
    highest_fd: u32,
}

/// A record that a child writes into the pipe before it executes the program: a NUL (no text begins
/// with it), the kind, and a number. The first record has the child's pid; a failure has an error
/// number.
struct Record {
    about: u8,
    number: i32,
}

const PID: u8 = b'p';
const STEP_NULL: u8 = b'n';
const STEP_EXEC: u8 = b'e';

impl Record {
    /// Removes a record from the beginning of `bytes`, if there is one.
    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let (&[nul, about, a, b, c, d], rest) = bytes.split_first_chunk()?;
        if nul != 0 {
            return None;
        }
        *bytes = rest;
        Some(Self { about, number: i32::from_ne_bytes([a, b, c, d]) })
    }

    /// The error that this record reports.
    fn error(&self, program: &Path) -> io::Error {
        let error = io::Error::from_raw_os_error(self.number);
        let what = match self.about {
            STEP_NULL => "/dev/null".into(),
            _ => program.display().to_string(),
        };
        io::Error::new(error.kind(), format!("{what}: {error}"))
    }

    /// Writes it into the pipe. If the other end is gone, there is nothing to do.
    fn write(&self, fd: i32) {
        let [a, b, c, d] = self.number.to_ne_bytes();
        let bytes = [0, self.about, a, b, c, d];
        // SAFETY: write reads no more bytes than the buffer has.
        unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    }
}

/// This process is not the leader of its session, so opening a terminal cannot make it the
/// controlling terminal.
fn become_program(plan: &Plan, writer: i32) -> ! {
    Record { about: PID, number: nix::unistd::getpid().as_raw() }.write(writer);
    // SAFETY: umask takes an integer, chdir a NUL-terminated string.
    unsafe {
        libc::umask(0o077);
        libc::chdir(c"/".as_ptr());
    }
    if let Err(error) = arrange_descriptors(plan, writer) {
        fail(STEP_NULL, error);
    }
    reset_scheduling();
    raise_limits();
    reset_memory();
    reset_signals();
    let error = plan.program.exec();
    fail(STEP_EXEC, error)
}

/// Makes the pipe [`REPORT_FD`], reopens 0, 1 and 2, and closes all others.
fn arrange_descriptors(plan: &Plan, writer: i32) -> Result<(), Errno> {
    // SAFETY: the descriptors belong to this child alone, and no Rust object is used afterwards.
    // The names are NUL-terminated strings.
    unsafe {
        if writer == REPORT_FD {
            libc::fcntl(REPORT_FD, libc::F_SETFD, 0);
        } else {
            libc::dup2(writer, REPORT_FD);
        }
        let null = Errno::result(libc::open(c"/dev/null".as_ptr(), libc::O_RDWR))?;
        // These two come first, so that the log cannot get their numbers.
        libc::dup2(null, 0);
        libc::dup2(null, 1);
        let log = plan.log.as_ref().map_or(-1, |log| {
            let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT;
            let mode: libc::c_uint = 0o600;
            libc::open(log.as_ptr(), flags | libc::O_NOFOLLOW | libc::O_NOCTTY, mode)
        });
        // The process still runs if it cannot open the log (a full disk).
        libc::dup2(if log >= 0 { log } else { null }, 2);
    }
    fds::close_from(REPORT_FD.unsigned_abs() + 1, || plan.highest_fd);
    Ok(())
}

fn fail(step: u8, error: Errno) -> ! {
    Record { about: step, number: error as i32 }.write(REPORT_FD);
    exit(127)
}

/// `IOPRIO_WHO_PROCESS` of linux/ioprio.h.
const IOPRIO_WHO_PROCESS: libc::c_int = 1;
/// The kernel's default, in nanoseconds.
const TIMER_SLACK_NS: libc::c_ulong = 50_000;
/// The usual limit of the stack. A larger limit changes the memory layout.
const STACK_BYTES: libc::rlim_t = 8 * 1024 * 1024;
/// The number of kinds of limits, `RLIM_NLIMITS`.
const LIMITS: u32 = 16;
/// The number of signals, `_NSIG` of the kernel.
const SIGNALS: libc::c_int = 64;

// The functions below reset what a forked child inherits. They are async-signal-safe and report no
// errors: a daemon with a low limit is better than no daemon.

/// Resets scheduling policy, nice value, i/o priority, processors and timer slack.
fn reset_scheduling() {
    // The kernel reads one bit for each processor that it supports, and uses those that exist.
    let all = [0xff_u8; 1024];
    // SAFETY: each call reads the integers or the buffer that it gets, which outlive the call.
    unsafe {
        let normal: libc::sched_param = zeroed();
        libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const normal);
        libc::setpriority(libc::PRIO_PROCESS, 0, 0);
        libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, 0);
        libc::syscall(libc::SYS_sched_setaffinity, 0, all.len(), all.as_ptr());
        libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK_NS);
    }
}

/// Raises every limit as far as allowed, except the stack's.
fn raise_limits() {
    let free = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    for kind in 0..LIMITS {
        // Root may raise these above the hard limit. Limits of descriptors and processes are set on
        // purpose and stay.
        let hurts =
            matches!(kind as _, RLIMIT_AS | RLIMIT_CPU | RLIMIT_DATA | RLIMIT_FSIZE | RLIMIT_RSS);
        // SAFETY: the structure is two integers. getrlimit writes it, setrlimit reads it.
        unsafe {
            let mut limit: libc::rlimit = zeroed();
            if hurts && libc::setrlimit(kind as _, &raw const free) == 0
                || libc::getrlimit(kind as _, &raw mut limit) != 0
            {
                continue;
            }
            limit.rlim_cur = match kind as _ {
                libc::RLIMIT_STACK => limit.rlim_cur.max(STACK_BYTES.min(limit.rlim_max)),
                _ => limit.rlim_max,
            };
            libc::setrlimit(kind as _, &raw const limit);
        }
    }
}

/// Resets the OOM score, the memory policy and the execution domain.
fn reset_memory() {
    // SAFETY: the strings are NUL-terminated, the buffer has its length, and each null is allowed
    // in its place.
    unsafe {
        let fd = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY);
        if fd >= 0 {
            libc::write(fd, c"0".as_ptr().cast(), 1);
            libc::close(fd);
        }
        // MPOL_DEFAULT.
        libc::syscall(libc::SYS_set_mempolicy, 0, std::ptr::null::<libc::c_ulong>(), 0);
        libc::personality(0);
    }
}

/// Sets every signal to its default, and unblocks all.
fn reset_signals() {
    // Uses the system call: the C library refuses its two reserved signals, which a process can
    // inherit as ignored like any other. All zeros mean the default, whatever the order of the
    // fields.
    let (default, none) = ([0_u64; 8], std::ptr::null_mut::<u64>());
    for signal in 1..=SIGNALS {
        // SAFETY: the kernel reads its own, smaller structure from the buffer.
        unsafe {
            let default = default.as_ptr();
            libc::syscall(libc::SYS_rt_sigaction, signal, default, none, size_of::<u64>());
        }
    }
    signals::change_mask(libc::SIG_SETMASK, 0);
}

/// A lower limit of descriptors is reported.
const DESCRIPTORS_FEW: u64 = 1024;

/// A smaller stack is reported.
const STACK_BYTES_FEW: u64 = 1024 * 1024;

/// The inherited circumstances that may harm a daemon, one note each: "nice value 5", "address
/// space limited to 1048576 bytes". Empty if there are none.
pub fn notes() -> Vec<String> {
    const CLASS_SHIFT: libc::c_long = 13;
    const CLASS_IDLE: libc::c_long = 3;
    let nice = getpriority_process(None).ok().filter(|nice| *nice > 0);
    // SAFETY: the call takes an integer and does not touch our memory.
    let policy = match unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK {
        libc::SCHED_BATCH => Some("scheduling policy batch".to_owned()),
        libc::SCHED_IDLE => Some("scheduling policy idle".to_owned()),
        _ => None,
    };
    // SAFETY: the call takes integers and does not touch our memory.
    let priority = unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0) };
    let is_io_idle = priority >= 0 && priority >> CLASS_SHIFT == CLASS_IDLE;
    let oom_score = fs::read_to_string("/proc/self/oom_score_adj").ok();
    let oom_score = oom_score.and_then(|text| text.trim().parse::<i32>().ok());
    let killed_early = |score| format!("oom_score_adj {score}: killed early when memory is short");
    // A process cannot leave its cgroup: killing or limiting the cgroup affects this process too.
    let cgroup = own_cgroup().filter(|path| path != "/");
    let notes = nice.map(|nice| format!("nice value {nice}")).into_iter().chain(policy);
    notes
        .chain(is_io_idle.then(|| "i/o priority idle".to_owned()))
        .chain(limits())
        .chain(oom_score.filter(|score| *score > 0).map(killed_early))
        .chain(cgroup.map(|path| format!("in the cgroup {path}")))
        .collect()
}

/// The limits below which a daemon may fail.
fn limits() -> impl Iterator<Item = String> {
    let limits = [
        (Resource::RLIMIT_AS, libc::RLIM_INFINITY, "address space", " bytes"),
        (Resource::RLIMIT_DATA, libc::RLIM_INFINITY, "data", " bytes"),
        (Resource::RLIMIT_FSIZE, libc::RLIM_INFINITY, "file size", " bytes"),
        (Resource::RLIMIT_CPU, libc::RLIM_INFINITY, "processor time", " seconds"),
        (Resource::RLIMIT_STACK, STACK_BYTES_FEW, "stack", " bytes"),
        (Resource::RLIMIT_NOFILE, DESCRIPTORS_FEW, "open descriptors", ""),
    ];
    limits.into_iter().filter_map(|(kind, enough, what, unit)| {
        let (limit, _) = getrlimit(kind).ok()?;
        (limit < enough).then(|| format!("{what} limited to {limit}{unit}"))
    })
}

#[cfg(test)]
mod tests;
