//! The inherited circumstances that could not be reset, as the process itself finds them.

use std::fs;

use nix::sys::resource::{Resource, getrlimit};

/// A lower limit of descriptors is reported.
const DESCRIPTORS_FEW: u64 = 1024;

/// A smaller stack is reported.
const STACK_BYTES_FEW: u64 = 1024 * 1024;

/// The inherited circumstances that may harm a daemon, one note each: "nice value 5", "address
/// space limited to 1048576 bytes". Empty if there are none.
#[must_use]
pub fn notes() -> Vec<String> {
    let mut notes = Vec::new();
    notes.extend(nice());
    notes.extend(policy());
    notes.extend(io_priority());
    notes.extend(limits());
    notes.extend(oom_score());
    notes.extend(cgroup());
    notes
}

fn nice() -> Option<String> {
    // SAFETY: the call takes integers and does not touch our memory.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    (nice > 0).then(|| format!("nice value {nice}"))
}

fn policy() -> Option<String> {
    // SAFETY: the call takes an integer and does not touch our memory.
    match unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK {
        libc::SCHED_BATCH => Some("scheduling policy batch".to_owned()),
        libc::SCHED_IDLE => Some("scheduling policy idle".to_owned()),
        _ => None,
    }
}

fn io_priority() -> Option<String> {
    const WHO_PROCESS: libc::c_int = 1;
    const CLASS_SHIFT: libc::c_long = 13;
    const CLASS_IDLE: libc::c_long = 3;
    // SAFETY: the call takes integers and does not touch our memory.
    let priority = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, 0) };
    (priority >= 0 && priority >> CLASS_SHIFT == CLASS_IDLE).then(|| "i/o priority idle".to_owned())
}

fn limits() -> Vec<String> {
    let finite = |kind| getrlimit(kind).ok().map(|(soft, _)| soft).filter(is_finite);
    let mut notes = Vec::new();
    for (kind, what, unit) in [
        (Resource::RLIMIT_AS, "address space", "bytes"),
        (Resource::RLIMIT_DATA, "data", "bytes"),
        (Resource::RLIMIT_FSIZE, "file size", "bytes"),
        (Resource::RLIMIT_CPU, "processor time", "seconds"),
    ] {
        if let Some(limit) = finite(kind) {
            notes.push(format!("{what} limited to {limit} {unit}"));
        }
    }
    if let Some(limit) = finite(Resource::RLIMIT_STACK).filter(|&limit| limit < STACK_BYTES_FEW) {
        notes.push(format!("stack limited to {limit} bytes"));
    }
    if let Some(limit) = finite(Resource::RLIMIT_NOFILE).filter(|&limit| limit < DESCRIPTORS_FEW) {
        notes.push(format!("open descriptors limited to {limit}"));
    }
    notes
}

fn is_finite(limit: &u64) -> bool {
    *limit != libc::RLIM_INFINITY
}

fn oom_score() -> Option<String> {
    let text = fs::read_to_string("/proc/self/oom_score_adj").ok()?;
    let score: i32 = text.trim().parse().ok()?;
    (score > 0).then(|| format!("oom_score_adj {score}: killed early when memory is short"))
}

/// A process cannot leave its cgroup: killing or limiting the cgroup affects this process too.
fn cgroup() -> Option<String> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    (path != "/").then(|| format!("in the cgroup {path}"))
}
