//! The signals that the supervisor passes on, and its stop when the command stops.

use std::io;

use nix::sys::signal::{SigSet, Signal, raise};

use canal_sys::signals;

/// Signals that are passed on.
const PASSED_ON: [Signal; 12] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGCONT,
    Signal::SIGWINCH,
    Signal::SIGALRM,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
];

/// Signals that the kernel sends to a whole foreground group.
pub(super) const OF_TERMINAL: [Signal; 8] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGCONT,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
];

/// The signals that the supervisor reads, so that they do not end it.
pub(super) fn signals_watched() -> SigSet {
    PASSED_ON.into_iter().chain([Signal::SIGCHLD]).collect()
}

/// Stops this process by the signal that stopped the command, so that the shell sees the same as
/// without canal. Returns when this process is continued.
pub(super) fn stop_too(signal: i32) -> io::Result<()> {
    let signal = Signal::try_from(signal).unwrap_or(Signal::SIGSTOP);
    if signal == Signal::SIGSTOP {
        return Ok(raise(signal)?);
    }
    let was_ignored = signals::set_default(signal)?;
    raise(signal)?;
    let mut only = SigSet::empty();
    only.add(signal);
    only.thread_unblock()?;
    only.thread_block()?;
    if was_ignored {
        signals::set_ignored(signal)?;
    }
    Ok(())
}
