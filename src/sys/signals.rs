//! Signals of this process.

use std::io;

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

/// Blocks these signals in addition. Returns the signals that were blocked before, for
/// [`Blocked::restore`].
///
/// Uses the system call: the C libraries reserve some signals and leave them out of every set that
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

/// Changes which signals this thread blocks. Returns the signals that were blocked before.
/// Async-signal-safe.
fn change_mask(how: libc::c_int, set: u64) -> u64 {
    let mut before: u64 = 0;
    // SAFETY: the kernel reads and writes 8 bytes each, as the last argument says. No handler of
    // ours depends on the blocked signals. The call cannot fail with these arguments.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            how,
            &raw const set,
            &raw mut before,
            size_of::<u64>(),
        )
    };
    before
}

/// Ends this process by a signal, which may be a real-time signal: sets the default effect,
/// unblocks the signal and sends it to this process. There is no core dump, because the command
/// whose signal is passed on has already made its own. Returns only if the signal does not end this
/// process (the first process of a pid namespace).
pub fn die_by(signal: i32) {
    // If core dumps go into a pipe, the kernel ignores the limit, but not this flag.
    let _ = nix::sys::prctl::set_dumpable(false);
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    // SAFETY: the default effect is not a function. The set is local, and is emptied before it is
    // used.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
    }
}

fn set(signal: Signal, handler: SigHandler) -> io::Result<bool> {
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is installed that could run at a bad moment. Only effects of the kernel
    // itself are chosen.
    let before = unsafe { sigaction(signal, &action) }?;
    Ok(matches!(before.handler(), SigHandler::SigIgn))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;
    use crate::sys::rerun;

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
        if !rerun::plays("sys::signals::tests::scene") {
            return;
        }
        for signal in std::env::var("CANAL_TEST_SIGNALS").unwrap().split(' ') {
            SigSet::all().thread_block().unwrap();
            die_by(signal.parse().unwrap());
        }
        std::process::exit(0);
    }

    #[test]
    fn a_blocked_or_ignored_signal_ends_it_all_the_same() {
        for signal in [libc::SIGTERM, libc::SIGPIPE, libc::SIGQUIT, 9, libc::SIGRTMIN() + 1] {
            let mut command = rerun::command("sys::signals::tests::scene", "trap '' TERM;");
            let output = command.env("CANAL_TEST_SIGNALS", signal.to_string()).output().unwrap();
            assert_eq!(output.status.signal(), Some(signal), "{output:?}");
            assert!(!output.status.core_dumped());
        }
    }

    #[test]
    fn a_signal_that_ends_nothing_returns() {
        let mut command = rerun::command("sys::signals::tests::scene", "");
        let output = command.env("CANAL_TEST_SIGNALS", libc::SIGURG.to_string()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}
