//! One line on standard error's terminal that is redrawn often and leaves no trace: it is erased
//! even if a signal ends or stops this process.

use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;
use nix::errno::Errno;

use super::shared;
use crate::signals;

/// Moves to the beginning of the line and clears it.
const ERASE: &[u8] = b"\r\x1b[K";

/// Signals that end a process by default and that people or their terminals send.
const ENDING: [c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// Whether the line of this process is on the screen, and the cursor behind it.
static DRAWN: AtomicBool = AtomicBool::new(false);

/// From now on, signals that end or stop this process erase the line first. An ignored signal stays
/// ignored. Each signal keeps its effect, also after an exec.
pub fn erase_on_signals() {
    for signal in ENDING {
        signals::handle_default(signal, erase_and_end);
    }
    signals::handle_default(libc::SIGTSTP, erase_and_stop);
}

/// Draws the line with `write`. If a signal erases the line before `write` returns, as when the
/// process is stopped and continued, draws it again: it is unknown how much of it was written after
/// that.
pub fn draw(mut write: impl FnMut()) {
    loop {
        // From here on, a signal erases the line.
        DRAWN.store(true, Ordering::Relaxed);
        write();
        if is_drawn() {
            return;
        }
    }
}

/// Whether the line is on the screen.
pub fn is_drawn() -> bool {
    DRAWN.load(Ordering::Relaxed)
}

/// Erases the line, if it is on the screen. Async-signal-safe.
pub fn erase() {
    if DRAWN.swap(false, Ordering::Relaxed) {
        erase_any();
    }
}

/// Erases another process's line, with the cursor behind it. Async-signal-safe.
pub fn erase_any() {
    // SAFETY: the bytes live forever, and their number is right. A failure changes nothing.
    unsafe { libc::write(libc::STDERR_FILENO, ERASE.as_ptr().cast(), ERASE.len()) };
}

/// Leaves the line where it is: other output was written behind it.
pub fn forget() {
    DRAWN.store(false, Ordering::Relaxed);
}

extern "C" fn erase_and_end(signal: c_int) {
    erase();
    signals::end(signal);
}

extern "C" fn erase_and_stop(signal: c_int) {
    let errno = Errno::last_raw();
    erase();
    // Other processes may draw while this one is stopped.
    shared::let_go();
    signals::by_default(signal);
    // The process continues.
    signals::handle(signal, erase_and_stop);
    Errno::set_raw(errno);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_a_signal_erases_while_it_is_drawn_is_drawn_anew_and_stays_noted() {
        let mut written = 0;
        draw(|| {
            written += 1;
            if written == 1 {
                // The signal handlers do the same. The rest of the line is written after that.
                forget();
            }
        });
        assert_eq!((written, is_drawn()), (2, true));
        forget();
    }
}
