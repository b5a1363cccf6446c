//! Owns the terminal: raw mode, the alternate screen, the output that changes it, the keys that the
//! user presses, and signals that are read as events.
//!
//! Invariant: however this process ends, except by SIGKILL, it restores the terminal to its
//! previous state.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::panic;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anstream::{AutoStream, ColorChoice};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::termios::{LocalFlags, SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use nix::unistd::read;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier};
use terminal_size::{Height, Width, terminal_size_of};

use crate::cli::output::columns::can_move_cursor;
use crate::cli::{Failed, Result};
use crate::sys::fds::poll_within;
use crate::sys::terminal::output::TerminalOutput;

/// The signals that end this process, after it has restored the terminal.
pub(super) const ENDING: [Signal; 4] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

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

/// The signals of this process, as events to read. From now on, they have no other effect in this
/// thread and in the threads that it starts.
pub(super) fn catch_signals() -> Result<SignalFd> {
    let others = [Signal::SIGTSTP, Signal::SIGCONT, Signal::SIGWINCH];
    let signals: SigSet = ENDING.into_iter().chain(others).collect();
    signals.thread_block().map_err(cannot_use)?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    SignalFd::with_flags(&signals, flags).map_err(cannot_use)
}

/// The terminal of standard input and output. Dropping it restores the terminal.
#[derive(Debug)]
pub(super) struct Terminal {
    signals: SignalFd,
    /// The present content of the screen.
    shown: Buffer,
    /// Whether the terminal and its user want colours, not only bold, faint and reverse.
    choice: ColorChoice,
    /// Whether the terminal shows the alternate screen. One that has accepted no output does not
    /// yet.
    is_entered: bool,
}

/// Fails if it is impossible to draw a whole screen.
pub(super) fn check() -> Result {
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    if !is_terminal {
        return Err(Failed::new("canal top needs a terminal on standard input and output")
            .hint("use `canal status --watch --json` in programs"));
    }
    if !can_move_cursor() {
        return Err(Failed::new("canal top needs a terminal that can move its cursor (TERM)")
            .hint("use `canal status --watch`, which prints one page after another"));
    }
    Ok(())
}

impl Terminal {
    /// Takes over the terminal.
    pub(super) fn enter(signals: SignalFd) -> Result<Self> {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |about| {
            leave();
            before(about);
        }));
        let output = TerminalOutput::of(io::stdout()).map_err(cannot_use)?;
        OUTPUT.get_or_init(|| output);
        let is_entered = take(&signals)?;
        let choice = AutoStream::choice(&io::stdout());
        Ok(Self { signals, shown: Buffer::empty(Rect::ZERO), choice, is_entered })
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
    pub(super) fn show(&mut self, next: Buffer, cursor: Option<(u16, u16)>) -> Result {
        let mut text = String::new();
        if !self.is_entered {
            text.push_str(ENTER);
        }
        if self.shown.area != next.area {
            self.shown = Buffer::empty(next.area);
            text.push_str(CLEAR);
        }
        text += &changes(&self.shown, &next, cursor, self.choice);
        self.shown = next;
        match write(&text, &self.signals)? {
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
    pub(super) fn wait(&self, news: impl AsFd, time: Option<Duration>) -> Result<Events> {
        let stdin = io::stdin();
        let mut fds = [
            PollFd::new(stdin.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(news.as_fd(), PollFlags::POLLIN),
        ];
        poll_within(&mut fds, time).map_err(cannot_use)?;
        let has_typed = fds[0].any().unwrap_or(false);
        let signal = self.signals.read_signal().ok().flatten();
        let signal = signal.and_then(|it| Signal::try_from(it.ssi_signo.cast_signed()).ok());
        let mut events = Events { signal, ..Events::default() };
        if has_typed {
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
    pub(super) fn suspend(&mut self) -> Result {
        leave();
        let stop = SigSet::from(Signal::SIGTSTP);
        // The signal goes to this thread, because the others block it. It takes effect when it is
        // unblocked.
        raise(Signal::SIGTSTP).map_err(cannot_use)?;
        stop.thread_unblock().map_err(cannot_use)?;
        stop.thread_block().map_err(cannot_use)?;
        self.forget();
        self.is_entered = take(&self.signals)?;
        Ok(())
    }

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
fn take(signals: &SignalFd) -> Result<bool> {
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
fn write(text: &str, signals: &SignalFd) -> Result<bool> {
    let Some(output) = OUTPUT.get() else { return Ok(true) };
    output.write_until(text.as_bytes(), signals.as_fd()).map_err(cannot_use)
}

fn cannot_use(error: impl Into<io::Error>) -> Failed {
    Failed::new(format!("cannot use the terminal: {}", error.into()))
}

/// How long an Escape must stand alone to count as a key. Slow lines may split the bytes of a key.
pub(super) const ESCAPE_PAUSE: Duration = Duration::from_millis(200);

/// A key that the user pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// A character.
    Char(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    /// Ctrl-L: redraws the screen.
    Redraw,
    /// Ctrl-U: clears the typed text.
    Clear,
}

/// The byte that terminals send before the name of a key.
const ESCAPE: u8 = 0x1b;

/// The longest name of a key. Longer input does not come from a keyboard.
const NAME_MAX: usize = 32;

/// Reads keys. The bytes of one key may come in several pieces.
#[derive(Debug, Default)]
pub(super) struct Keyboard {
    /// The beginning of an incomplete key.
    begun: Vec<u8>,
}

impl Keyboard {
    /// The keys that these bytes complete.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.begun.extend_from_slice(bytes);
        let mut keys = Vec::new();
        while let Some((length, key)) = first(&self.begun) {
            self.begun.drain(..length);
            keys.extend(key);
        }
        keys
    }

    /// Whether there are bytes that may be the beginning of a key.
    pub(super) fn has_begun(&self) -> bool {
        !self.begun.is_empty()
    }

    /// Handles a pause in the input: an Escape without a continuation is the key of that name.
    pub(super) fn pause(&mut self) -> Vec<Key> {
        let begun = std::mem::take(&mut self.begun);
        if begun.first() == Some(&ESCAPE) { vec![Key::Escape] } else { Vec::new() }
    }
}

/// The first key, and its number of bytes. `None` if the key is incomplete.
fn first(bytes: &[u8]) -> Option<(usize, Option<Key>)> {
    match *bytes.first()? {
        ESCAPE => named(bytes),
        b'\r' | b'\n' => Some((1, Some(Key::Enter))),
        0x7f | 0x08 => Some((1, Some(Key::Backspace))),
        0x0c => Some((1, Some(Key::Redraw))),
        0x15 => Some((1, Some(Key::Clear))),
        0x00..0x20 => Some((1, None)),
        _ => character(bytes),
    }
}

/// A character in UTF-8. Invalid bytes are skipped.
fn character(bytes: &[u8]) -> Option<(usize, Option<Key>)> {
    let invalid = std::str::from_utf8(bytes).err();
    let valid = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    match valid.chars().next() {
        Some(c) => Some((c.len_utf8(), (!c.is_control()).then_some(Key::Char(c)))),
        // The rest of the character is on its way.
        None if invalid.is_some_and(|error| error.error_len().is_none()) => None,
        None => Some((1, None)),
    }
}

/// A key with a name: `ESC [ A`, `ESC O A`, `ESC [ 5 ~`.
fn named(bytes: &[u8]) -> Option<(usize, Option<Key>)> {
    match bytes.get(1)? {
        b'[' => {
            let rest = &bytes[2..];
            let Some(end) = rest.iter().position(|byte| (0x40..0x7f).contains(byte)) else {
                return (rest.len() > NAME_MAX).then_some((bytes.len(), None));
            };
            Some((end + 3, key_of(rest[end], &rest[..end])))
        }
        b'O' => Some((3, key_of(*bytes.get(2)?, &[]))),
        // The key Escape, followed by something else.
        _ => Some((1, Some(Key::Escape))),
    }
}

fn key_of(last: u8, numbers: &[u8]) -> Option<Key> {
    let number = numbers.split(|byte| *byte == b';').next().unwrap_or_default();
    Some(match (last, number) {
        (b'A', _) => Key::Up,
        (b'B', _) => Key::Down,
        (b'H', _) | (b'~', b"1" | b"7") => Key::Home,
        (b'F', _) | (b'~', b"4" | b"8") => Key::End,
        (b'~', b"5") => Key::PageUp,
        (b'~', b"6") => Key::PageDown,
        (b'M', []) => Key::Enter,
        _ => return None,
    })
}

/// Clears the screen.
const CLEAR: &str = "\x1b[0m\x1b[2J";

/// The output that turns the screen `old` into the screen `next`, with the cursor where the user
/// types. Empty if the two are equal.
fn changes(old: &Buffer, next: &Buffer, cursor: Option<(u16, u16)>, choice: ColorChoice) -> String {
    let mut text = String::new();
    let mut behind = None;
    let mut style = String::new();
    for (x, y, cell) in old.diff(next) {
        if behind != Some((x, y)) {
            // Numbers of lines and columns begin at 1.
            text += &format!("\x1b[{};{}H", y + 1, x + 1);
        }
        let is_yellow = choice != ColorChoice::Never && cell.fg == Color::Yellow;
        // The parameters of SGR after the 0.
        let parameters = [
            (cell.modifier.contains(Modifier::BOLD), ";1"),
            (cell.modifier.contains(Modifier::DIM), ";2"),
            (cell.modifier.contains(Modifier::REVERSED), ";7"),
            (is_yellow, ";33"),
        ];
        let set = parameters.iter().filter(|(is_set, _)| *is_set);
        let wanted: String = set.map(|(_, number)| *number).collect();
        if wanted != style {
            text += &format!("\x1b[0{wanted}m");
            style = wanted;
        }
        text.push_str(cell.symbol());
        // After a wide character, the output moves the cursor explicitly, because terminals differ
        // in widths.
        behind = cell.symbol().is_ascii().then_some((x + 1, y));
    }
    if !style.is_empty() {
        text.push_str("\x1b[0m");
    }
    match cursor {
        Some((x, y)) => text += &format!("\x1b[{};{}H\x1b[?25h", y + 1, x + 1),
        None if !text.is_empty() => text.push_str("\x1b[?25l"),
        None => {}
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ratatui_core::layout::Rect;
    use ratatui_core::style::Style;

    use super::*;

    fn keys(bytes: &[u8]) -> Vec<Key> {
        let mut keyboard = Keyboard::default();
        let mut keys = keyboard.read(bytes);
        keys.extend(keyboard.pause());
        keys
    }

    #[test]
    fn keys_have_the_names_that_terminals_give_them() {
        for (bytes, expected) in [
            (&b"q"[..], &[Key::Char('q')][..]),
            ("ä漢".as_bytes(), &[Key::Char('ä'), Key::Char('漢')]),
            (b"\r", &[Key::Enter]),
            (b"\x7f\x08", &[Key::Backspace, Key::Backspace]),
            (b"\x1b[A\x1bOB", &[Key::Up, Key::Down]),
            (b"\x1b[1;5A", &[Key::Up]),
            (b"\x1b[5~\x1b[6~", &[Key::PageUp, Key::PageDown]),
            (b"\x1b[H\x1b[F\x1b[1~\x1b[8~", &[Key::Home, Key::End, Key::Home, Key::End]),
            (b"\x1b", &[Key::Escape]),
            (b"\x1bq", &[Key::Escape, Key::Char('q')]),
            (b"\x0c\x15", &[Key::Redraw, Key::Clear]),
            (b"\x1b[200~x\x1b[15~", &[Key::Char('x')]),
            (b"\xff\xc3q\x01", &[Key::Char('q')]),
        ] {
            assert_eq!(keys(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn an_endless_name_is_dropped() {
        let mut keyboard = Keyboard::default();
        assert_eq!(keyboard.read(&[b"\x1b[".to_vec(), vec![b'1'; 1000]].concat()), []);
        assert!(!keyboard.has_begun());
    }

    proptest! {
        #[test]
        fn it_does_not_matter_in_which_pieces_the_bytes_come(
            bytes in proptest::collection::vec(
                prop_oneof![Just(0x1b), Just(b'['), Just(b'O'), Just(b'A'), Just(b'5'), Just(b'~'), any::<u8>()],
                0..24,
            ),
        ) {
            let mut keyboard = Keyboard::default();
            let mut pieces: Vec<Key> = bytes.iter().flat_map(|byte| keyboard.read(&[*byte])).collect();
            pieces.extend(keyboard.pause());
            prop_assert_eq!(pieces, keys(&bytes));
        }
    }

    fn buffer(lines: [&str; 2], style: Style) -> Buffer {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 10, 2));
        for (y, line) in (0..).zip(lines) {
            buffer.set_string(0, y, line, style);
        }
        buffer
    }

    #[test]
    fn only_what_differs_is_written() {
        let before = buffer(["a 12s", "b"], Style::new());
        let next = buffer(["a 13s", "b"], Style::new());
        assert_eq!(changes(&before, &before, None, ColorChoice::Never), "");
        assert_eq!(changes(&before, &next, None, ColorChoice::Never), "\x1b[1;4H3\x1b[?25l");
        let typed = changes(&before, &before, Some((2, 1)), ColorChoice::Never);
        assert_eq!(typed, "\x1b[2;3H\x1b[?25h");
    }

    #[test]
    fn a_terminal_ends_up_with_what_was_drawn() {
        let warning = Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD);
        let before = buffer(["漢字 a", "zzz"], Style::new());
        let next = buffer(["a漢字 b", "z漢"], warning);
        let mut terminal = vt100::Parser::new(2, 10, 0);
        for (from, to) in [(&Buffer::empty(before.area), &before), (&before, &next)] {
            terminal.process(changes(from, to, None, ColorChoice::Always).as_bytes());
        }
        assert_eq!(terminal.screen().contents(), "a漢字 b\nz漢");
        let cell = terminal.screen().cell(0, 0).unwrap();
        assert_eq!((cell.fgcolor(), cell.bold()), (vt100::Color::Idx(3), true));
    }

    #[test]
    fn without_colours_none_is_written() {
        let blank = Buffer::empty(Rect::new(0, 0, 10, 2));
        let next = buffer(["a", "b"], Style::new().fg(Color::Yellow).add_modifier(Modifier::DIM));
        assert!(changes(&blank, &next, None, ColorChoice::Always).contains("\x1b[0;2;33m"));
        let plain = changes(&blank, &next, None, ColorChoice::Never);
        assert!(plain.contains("\x1b[0;2m") && !plain.contains("33"), "{plain:?}");
    }
}
