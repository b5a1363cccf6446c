//! Signals of this process.

use std::io;

use libc::{
    SIGABRT, SIGBUS, SIGCHLD, SIGCONT, SIGFPE, SIGILL, SIGPIPE, SIGSEGV, SIGSYS, SIGTRAP, SIGTSTP,
    SIGTTIN, SIGTTOU, SIGURG, SIGWINCH, c_int,
};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Gives a signal its default effect. Returns whether it was ignored before.
pub fn set_default(signal: Signal) -> io::Result<bool> {
    set(signal, SigHandler::SigDfl)
}

/// Ignores a signal. Returns whether it was ignored before.
pub fn set_ignored(signal: Signal) -> io::Result<bool> {
    set(signal, SigHandler::SigIgn)
}

/// The signals that were blocked, as the kernel numbers them: bit 0 is signal 1.
#[derive(Debug)]
pub struct Blocked(u64);

/// Blocks these signals as well. Returns the signals that were blocked before, for
/// [`Blocked::restore`].
///
/// Uses the system call: the C libraries reserve some signals and omit them from every set that
/// they take or return, so they would not restore the same set.
pub fn block(signals: &SigSet) -> Blocked {
    let set = signals.iter().fold(0, |set, signal| set | 1 << (signal as i32 - 1));
    Blocked(change_mask(libc::SIG_BLOCK, set))
}

/// Blocks all signals, like [`block`].
pub fn block_all() -> Blocked {
    Blocked(change_mask(libc::SIG_BLOCK, u64::MAX))
}

impl Blocked {
    /// Blocks these signals and no others. Async-signal-safe.
    pub fn restore(&self) {
        change_mask(libc::SIG_SETMASK, self.0);
    }
}

/// Changes which signals this thread blocks. Returns the signals that were blocked before. Calls
/// the kernel directly: the functions of the C library omit its own signals. Async-signal-safe.
pub(crate) fn change_mask(how: c_int, set: u64) -> u64 {
    let mut before: u64 = 0;
    // SAFETY: the kernel reads and writes 8 bytes each, as the last argument states. No handler of
    // ours depends on the blocked signals. The call cannot fail with these arguments.
    unsafe {
        let (set, before) = (&raw const set, &raw mut before);
        libc::syscall(libc::SYS_rt_sigprocmask, how, set, before, size_of::<u64>());
    }
    before
}

/// Ends this process by a signal, which may be a real-time signal: sets the default effect,
/// unblocks the signal and sends it to this process. Dumps no core, because the command whose
/// signal it passes on has already dumped its own. Returns only if the signal does not end this
/// process (the first process of a pid namespace), with the exit code that a shell reports for such
/// a death.
#[must_use]
pub fn die_by(signal: i32) -> u8 {
    // If core dumps are piped to a program, the kernel ignores the limit, but not this flag.
    let _ = nix::sys::prctl::set_dumpable(false);
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    by_default(signal);
    change_mask(libc::SIG_UNBLOCK, 1 << (signal - 1));
    128_u8.wrapping_add(signal.to_le_bytes()[0])
}

/// Signals that end no process by default, and those by which the kernel reports a fault: every
/// process ends at a fault, even process 1.
const NOT_ENDING: [c_int; 15] = [
    SIGCHLD, SIGCONT, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH, SIGABRT, SIGBUS, SIGFPE, SIGILL,
    SIGSEGV, SIGSYS, SIGTRAP, SIGPIPE,
];

/// Makes signals end process 1 of a pid namespace as they end any other process. The kernel drops
/// each signal to process 1 for which it has no handler, so `docker stop` would wait for its
/// time-out. An ignored signal stays ignored, and an exec resets all others to their default
/// effect.
pub fn obey_as_process_1() {
    if std::process::id() == 1 {
        let ending = (1..=libc::SIGRTMAX()).filter(|signal| !NOT_ENDING.contains(signal));
        ending.for_each(|signal| handle_default(signal, end));
    }
}

/// Installs a handler for a signal that has its default effect or that of [`end`]. The handler may
/// call only async-signal-safe functions.
pub(crate) fn handle_default(signal: c_int, handler: extern "C" fn(c_int)) {
    // SAFETY: the structure is integers and addresses, for which zeros are a value.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: without a new action the call only writes the old action, which outlives the call.
    unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut before) };
    if [libc::SIG_DFL, end as *const () as usize].contains(&before.sa_sigaction) {
        handle(signal, handler);
    }
}

/// Installs a handler, which may call only async-signal-safe functions. Async-signal-safe.
pub(crate) fn handle(signal: c_int, handler: extern "C" fn(c_int)) {
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    // A signal that is sent again within its handler has its effect at once.
    action.sa_flags = libc::SA_NODEFER;
    // SAFETY: the callers' handlers call only async-signal-safe functions.
    unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
}

/// Ends this process by the default effect of a signal. Process 1, to which that effect does not
/// apply, ends with the exit code that a shell reports for such a death. Async-signal-safe.
pub(crate) extern "C" fn end(signal: c_int) {
    by_default(signal);
    // SAFETY: the call takes an integer and does not return.
    unsafe { libc::_exit(128 + signal) };
}

/// Applies a signal's default effect, immediately unless the signal is blocked. Async-signal-safe.
pub(crate) fn by_default(signal: c_int) {
    // SAFETY: the default effect is not a function.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

fn set(signal: Signal, handler: SigHandler) -> io::Result<bool> {
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: installs no handler that could run at a bad time. Callers choose only effects that
    // the kernel itself applies.
    let before = unsafe { sigaction(signal, &action) }?;
    Ok(matches!(before.handler(), SigHandler::SigIgn))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;
    use crate::rerun;

    #[test]
    fn the_earlier_disposition_is_returned() {
        // A signal that nothing else in this test process uses.
        let signal = Signal::SIGURG;
        assert!(!set_ignored(signal).unwrap());
        assert!(set_ignored(signal).unwrap());
        assert!(set_default(signal).unwrap());
        assert!(!set_default(signal).unwrap());
    }

    #[test]
    #[ignore = "a scene"]
    fn scene() {
        if !rerun::plays("signals::tests::scene") {
            return;
        }
        for signal in std::env::var("CANAL_TEST_SIGNALS").unwrap().split(' ') {
            SigSet::all().thread_block().unwrap();
            let _ = die_by(signal.parse().unwrap());
        }
        std::process::exit(0);
    }

    #[test]
    fn a_blocked_or_ignored_signal_ends_it_all_the_same() {
        for signal in [libc::SIGTERM, SIGPIPE, libc::SIGQUIT, 9, libc::SIGRTMIN() + 1] {
            let mut command = rerun::command("signals::tests::scene", "trap '' TERM;");
            let output = command.env("CANAL_TEST_SIGNALS", signal.to_string()).output().unwrap();
            assert_eq!(output.status.signal(), Some(signal), "{output:?}");
            assert!(!output.status.core_dumped());
        }
    }

    #[test]
    fn a_signal_that_ends_nothing_returns() {
        let mut command = rerun::command("signals::tests::scene", "");
        let output = command.env("CANAL_TEST_SIGNALS", SIGURG.to_string()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}
