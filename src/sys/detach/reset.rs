//! Putting back what a process inherits, in a forked child: all of it async-signal-safe, and best
//! effort, for a daemon with a low limit is better than none.

use std::mem::zeroed;

/// `IOPRIO_WHO_PROCESS` of linux/ioprio.h.
const IOPRIO_WHO_PROCESS: libc::c_int = 1;
/// The default of the kernel, in nanoseconds.
const TIMER_SLACK_NS: libc::c_ulong = 50_000;
/// The usual limit of the stack; a larger one changes how memory is laid out.
const STACK_BYTES: libc::rlim_t = 8 * 1024 * 1024;
/// The number of kinds of limits, `RLIM_NLIMITS`.
const LIMITS: u32 = 16;
/// The number of signals, `_NSIG` of the kernel.
const SIGNALS: libc::c_int = 64;

pub(super) fn creation_mask_and_folder() {
    // SAFETY: the one takes an integer, the other a string with its end.
    unsafe {
        libc::umask(0o077);
        libc::chdir(c"/".as_ptr());
    }
}

/// Policy, nice value, i/o priority, processors, timer slack.
pub(super) fn scheduling() {
    // The kernel reads as much as it has processors for, and takes those that it has.
    let all = [0xff_u8; 1024];
    // SAFETY: each reads the integers or the buffer it is given, which live over the call.
    unsafe {
        let normal: libc::sched_param = zeroed();
        libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const normal);
        libc::setpriority(libc::PRIO_PROCESS, 0, 0);
        libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, 0);
        libc::syscall(libc::SYS_sched_setaffinity, 0, all.len(), all.as_ptr());
        libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK_NS);
    }
}

/// Raises every limit as far as allowed, but for the stack's.
pub(super) fn limits() {
    for kind in 0..LIMITS {
        // SAFETY: the structure is two integers; getrlimit writes it, setrlimit reads it.
        unsafe {
            let mut limit: libc::rlimit = zeroed();
            if libc::getrlimit(kind as _, &raw mut limit) != 0 {
                continue;
            }
            let wanted = match kind as _ {
                libc::RLIMIT_STACK => limit.rlim_cur.max(STACK_BYTES.min(limit.rlim_max)),
                _ => limit.rlim_max,
            };
            // What root may raise over the hard limit; a limit of descriptors or of processes has
            // its reasons.
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

/// How likely the kernel is to kill it for want of memory, and where it takes memory from.
pub(super) fn memory() {
    // SAFETY: strings with their ends, a buffer with its length, and null where null is allowed.
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

/// Every signal at its default, none blocked.
pub(super) fn signals() {
    // Not by the C library: it refuses the two that it keeps for itself, which can be inherited
    // ignored like any other. All zeros mean the default, whatever the order of the fields.
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
    // SAFETY: the kernel reads as many bytes as it is told the set has.
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
