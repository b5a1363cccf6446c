//! The signals that the supervisor passes on to the command, and those that the command has
//! received already.

use std::io;

use libc::signalfd_siginfo;
use nix::sys::signal::Signal::{
    self, SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1,
    SIGUSR2, SIGWINCH,
};
use nix::sys::signal::{SigSet, raise};
use nix::unistd::Pid;

use canal_sys::process::{RunState, run_state};
use canal_sys::signals;

/// Signals that are passed on.
pub(super) const PASSED_ON: [Signal; 12] = [
    SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCONT, SIGWINCH, SIGALRM, SIGTSTP,
    SIGTTIN, SIGTTOU,
];

/// Signals that the kernel sends to a whole foreground group.
const OF_TERMINAL: [Signal; 8] =
    [SIGHUP, SIGINT, SIGQUIT, SIGCONT, SIGWINCH, SIGTSTP, SIGTTIN, SIGTTOU];

/// Whether the command received the signal without the supervisor. `leads_group`: whether it leads
/// its own group.
pub(super) fn has_got(
    command: Pid,
    leads_group: bool,
    signal: Signal,
    info: &signalfd_siginfo,
) -> bool {
    if leads_group {
        return false;
    }
    if info.ssi_code == libc::SI_KERNEL {
        return OF_TERMINAL.contains(&signal);
    }
    let command = command.as_raw().unsigned_abs();
    // The command signalled its group, which includes us.
    info.ssi_pid == command
        // A shell continues the whole group.
        || signal == SIGCONT && run_state(command) != RunState::Stopped
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
