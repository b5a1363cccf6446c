//! Owns the terminal: raw mode, the alternate screen, and signals that are read as events.
//!
//! Invariant: however this process ends, except by SIGKILL, it restores the terminal to its
//! previous state.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::panic;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::termios::{LocalFlags, SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use nix::unistd::read;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use terminal_size::{Height, Width, terminal_size_of};

use super::escape_codes::{self, Palette};
use crate::cli::{Failed, Result};
use crate::sys::terminal::output::TerminalOutput;

/// The signals that end this process, after it has restored the terminal.
const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// Switches to the alternate screen and hides the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";

/// Switches back. On a terminal without an alternate screen, clears the screen.
const LEAVE: &str = "\x1b[0m\x1b[2J\x1b[H\x1b[?25h\x1b[?1049l";

/// The size of a terminal that does not report one.
const SIZE_ASSUMED: (u16, u16) = (80, 24);

/// The largest plausible width or height of a terminal.
const SIDE_MAX: u16 = 1000;

/// The previous settings of the terminal, while canal uses it.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// The output to the terminal, once canal has used it.
static OUTPUT: OnceLock<TerminalOutput> = OnceLock::new();

/// The events that arrived during a wait.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// The bytes that the user typed.
    pub(super) typed: Vec<u8>,
    /// Whether the terminal is gone.
    pub(super) hung_up: bool,
    /// A signal that arrived.
    pub(super) signal: Option<Signal>,
}

/// The signals of this process, as events to read. From their creation on, they have no other
/// effect in this thread and in the threads that it starts.
#[derive(Debug)]
pub(super) struct Signals(SignalFd);

impl Signals {
    pub(super) fn catch() -> Result<Self> {
        let mut signals: SigSet = ENDING.into_iter().collect();
        signals.add(Signal::SIGTSTP);
        signals.add(Signal::SIGCONT);
        signals.add(Signal::SIGWINCH);
        signals.thread_block().map_err(cannot_use)?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        SignalFd::with_flags(&signals, flags).map(Self).map_err(cannot_use)
    }

    fn next(&self) -> Option<Signal> {
        let signal = self.0.read_signal().ok()??;
        i32::try_from(signal.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok())
    }
}

/// Whether this signal ends canal.
pub(super) fn ends(signal: Signal) -> bool {
    ENDING.contains(&signal)
}

/// The terminal of standard input and output. Dropping it restores the terminal.
#[derive(Debug)]
pub(super) struct Terminal {
    /// The present content of the screen.
    shown: Buffer,
    palette: Palette,
    /// Whether the terminal shows the alternate screen. One that has accepted no output does not
    /// yet.
    is_entered: bool,
}

/// Fails if it is impossible to draw a whole screen.
pub(super) fn check() -> Result {
    let stream = "use `canal status --watch --json` in programs";
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(
            Failed::new("canal top needs a terminal on standard input and output").hint(stream)
        );
    }
    match std::env::var_os("TERM") {
        Some(term) if !term.is_empty() && term != "dumb" => Ok(()),
        _ => Err(Failed::new("canal top needs a terminal that can move its cursor (TERM)")
            .hint("use `canal status --watch`, which prints one page after another")),
    }
}

impl Terminal {
    /// Takes over the terminal.
    pub(super) fn enter(signals: &Signals) -> Result<Self> {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |about| {
            leave();
            before(about);
        }));
        let output = TerminalOutput::of(io::stdout()).map_err(cannot_use)?;
        OUTPUT.get_or_init(|| output);
        let is_entered = take(signals)?;
        let palette = match anstream::AutoStream::choice(&io::stdout()) {
            anstream::ColorChoice::Never => Palette::Plain,
            _ => Palette::Colours,
        };
        Ok(Self { shown: Buffer::empty(Rect::ZERO), palette, is_entered })
    }

    /// The area of the whole screen.
    pub(super) fn area() -> Rect {
        let (columns, lines) = match terminal_size_of(io::stdout()) {
            Some((Width(columns), Height(lines))) if columns > 0 && lines > 0 => (columns, lines),
            _ => SIZE_ASSUMED,
        };
        Rect::new(0, 0, columns.min(SIDE_MAX), lines.min(SIDE_MAX))
    }

    /// Shows `next` by writing the differences from the present content. `cursor` is where the user
    /// types. If the terminal accepts no output, a signal ends the wait, and the next call draws
    /// everything again.
    pub(super) fn show(
        &mut self,
        next: Buffer,
        cursor: Option<(u16, u16)>,
        signals: &Signals,
    ) -> Result {
        let mut text = String::new();
        if !self.is_entered {
            text.push_str(ENTER);
        }
        if self.shown.area != next.area {
            self.shown = Buffer::empty(next.area);
            text.push_str(escape_codes::CLEAR);
        }
        text += &escape_codes::changes(&self.shown, &next, cursor, self.palette);
        self.shown = next;
        match write(&text, signals)? {
            true => self.is_entered = true,
            false => self.forget(),
        }
        Ok(())
    }

    /// Makes the next call of [`Self::show`] draw everything.
    pub(super) fn forget(&mut self) {
        self.shown = Buffer::empty(Rect::ZERO);
    }

    /// Sleeps until the user types, a signal arrives, `news` is readable, or the time is over.
    pub(super) fn wait(
        signals: &Signals,
        news: impl AsFd,
        time: Option<Duration>,
    ) -> Result<Events> {
        let stdin = io::stdin();
        let mut fds = [
            PollFd::new(stdin.as_fd(), PollFlags::POLLIN),
            PollFd::new(signals.0.as_fd(), PollFlags::POLLIN),
            PollFd::new(news.as_fd(), PollFlags::POLLIN),
        ];
        let timeout = time.map_or(PollTimeout::NONE, |time| {
            // Rounded up, because a wait of 0 ms would spin.
            let time = time.as_micros().div_ceil(1000);
            PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(cannot_use(error)),
        }
        let typed = fds[0].any().unwrap_or(false);
        let signal = signals.next();
        let mut events = Events { signal, ..Events::default() };
        if typed {
            let mut bytes = [0; 256];
            match read(&stdin, &mut bytes) {
                Ok(0) | Err(Errno::EIO) => events.hung_up = true,
                Ok(count) => events.typed.extend_from_slice(&bytes[..count]),
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                Err(error) => return Err(cannot_use(error)),
            }
        }
        Ok(events)
    }

    /// Restores the terminal, stops like Ctrl-Z, and takes the terminal over again when the process
    /// continues.
    pub(super) fn suspend(&mut self, signals: &Signals) -> Result {
        leave();
        let stop = SigSet::from(Signal::SIGTSTP);
        // The signal goes to this thread, because the others block it. It takes effect when it is
        // unblocked.
        raise(Signal::SIGTSTP).map_err(cannot_use)?;
        stop.thread_unblock().map_err(cannot_use)?;
        stop.thread_block().map_err(cannot_use)?;
        self.forget();
        self.is_entered = take(signals)?;
        Ok(())
    }
}

impl Terminal {
    /// Continues after another signal stopped this process, while other processes may have used its
    /// terminal.
    pub(super) fn resume(&mut self) -> Result {
        let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(before) = before else { return Ok(()) };
        self.forget();
        make_raw(&before)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        leave();
    }
}

/// Takes over the terminal. Returns whether it shows the alternate screen.
fn take(signals: &Signals) -> Result<bool> {
    let before = tcgetattr(io::stdin()).map_err(cannot_use)?;
    *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before.clone());
    make_raw(&before)?;
    write(ENTER, signals)
}

fn make_raw(before: &Termios) -> Result {
    let mut raw = before.clone();
    cfmakeraw(&mut raw);
    // Ctrl-C, Ctrl-\ and Ctrl-Z act on the whole job, as usual.
    raw.local_flags |= LocalFlags::ISIG;
    tcsetattr(io::stdin(), SetArg::TCSANOW, &raw).map_err(cannot_use)
}

/// Restores the terminal, if canal uses it. Errors cannot be reported anywhere.
fn leave() {
    let Some(before) = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    let _ = OUTPUT.get().map(|output| output.write_last(LEAVE.as_bytes()));
    // Not TCSADRAIN, which would wait for a terminal that accepts no output.
    let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &before);
}

/// Writes until a signal arrives. Returns whether the whole text was written.
fn write(text: &str, signals: &Signals) -> Result<bool> {
    let Some(output) = OUTPUT.get() else { return Ok(true) };
    output.write_until(text.as_bytes(), signals.0.as_fd()).map_err(cannot_use)
}

fn cannot_use(error: impl Into<io::Error>) -> Failed {
    Failed::new(format!("cannot use the terminal: {}", error.into()))
}
