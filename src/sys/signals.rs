//! What signals do to this process.

use std::io;

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Gives a signal its default effect. Returns whether it was ignored before.
pub fn set_default(signal: Signal) -> io::Result<bool> {
    set(signal, SigHandler::SigDfl)
}

/// Ignores a signal. Returns whether it was ignored before.
pub fn set_ignored(signal: Signal) -> io::Result<bool> {
    set(signal, SigHandler::SigIgn)
}

fn set(signal: Signal, handler: SigHandler) -> io::Result<bool> {
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is installed that could run at a bad moment, only the kernel's own
    // effects are chosen.
    let before = unsafe { sigaction(signal, &action) }?;
    Ok(matches!(before.handler(), SigHandler::SigIgn))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_before_is_returned() {
        // A signal that nothing else in this test process uses.
        let signal = Signal::SIGURG;
        assert!(!set_ignored(signal).unwrap());
        assert!(set_ignored(signal).unwrap());
        assert!(set_default(signal).unwrap());
        assert!(!set_default(signal).unwrap());
    }
}
