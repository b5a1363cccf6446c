//! Resets what a process inherits, in a forked child. All functions are async-signal-safe and
//! report no errors: a daemon with a low limit is better than no daemon.

use std::mem::zeroed;

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

pub(super) fn creation_mask_and_folder() {
    // SAFETY: umask takes an integer, chdir a NUL-terminated string.
    unsafe {
        libc::umask(0o077);
        libc::chdir(c"/".as_ptr());
    }
}

/// Resets scheduling policy, nice value, i/o priority, processors and timer slack.
pub(super) fn scheduling() {
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
pub(super) fn limits() {
    for kind in 0..LIMITS {
        // SAFETY: the structure is two integers. getrlimit writes it, setrlimit reads it.
        unsafe {
            let mut limit: libc::rlimit = zeroed();
            if libc::getrlimit(kind as _, &raw mut limit) != 0 {
                continue;
            }
            let wanted = match kind as _ {
                libc::RLIMIT_STACK => limit.rlim_cur.max(STACK_BYTES.min(limit.rlim_max)),
                _ => limit.rlim_max,
            };
            // Root may raise these above the hard limit. Limits of descriptors and processes are
            // set on purpose and stay.
            let hurts = matches!(
                kind as _,
                libc::RLIMIT_AS
                    | libc::RLIMIT_CPU
                    | libc::RLIMIT_DATA
                    | libc::RLIMIT_FSIZE
                    | libc::RLIMIT_RSS
            );
            let free =
                libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
            if hurts && libc::setrlimit(kind as _, &raw const free) == 0 {
                continue;
            }
            limit.rlim_cur = wanted;
            libc::setrlimit(kind as _, &raw const limit);
        }
    }
}

/// Resets the OOM score, the memory policy and the execution domain.
pub(super) fn memory() {
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
pub(super) fn signals() {
    // Uses the system call: the C library refuses its two reserved signals, which a process can
    // inherit as ignored like any other. All zeros mean the default, whatever the order of the
    // fields.
    let default = [0_u64; 8];
    let none = 0_u64;
    for signal in 1..=SIGNALS {
        // SAFETY: the kernel reads its own, smaller structure from the buffer.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                std::ptr::null_mut::<u64>(),
                size_of_val(&none),
            );
        }
    }
    // SAFETY: the kernel reads the number of bytes of the set that the last argument states.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const none,
            std::ptr::null_mut::<u64>(),
            size_of_val(&none),
        );
    }
}
