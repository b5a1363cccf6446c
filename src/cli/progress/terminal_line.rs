//! The line on a terminal. One canal draws it for all that wait there.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};
use terminal_size::{Width, terminal_size_of};

use crate::sys::terminal::drawn_line;
use crate::sys::terminal::shared::SharedTerminal;

/// The width of a terminal that does not report one.
const COLUMNS_ASSUMED: usize = 80;

/// How long canals draw nothing after one of them has left this terminal, unless the daemon reports
/// something. The canal that left may have become its command, whose output begins where the line
/// was.
const PAUSE: Duration = Duration::from_secs(3);

/// The line of this canal.
#[derive(Debug)]
pub(super) struct TerminalLine {
    /// `None` if the terminal cannot be shared: then each canal draws.
    shared: Option<SharedTerminal>,
    /// How many canals wait here; 0 until this one draws.
    here: usize,
    text: String,
    bar: ProgressBar,
    paused_until: Option<Instant>,
}

impl TerminalLine {
    /// Starts to wait on the terminal, before the daemon has reported anything.
    pub(super) fn begin() -> Self {
        drawn_line::erase_on_signals();
        let shared = SharedTerminal::join(io::stderr()).ok();
        Self { shared, here: 0, text: String::new(), bar: new_bar(), paused_until: None }
    }

    /// If it is this canal's turn to draw, returns how many canals wait on the terminal. `news`
    /// means that the daemon has just reported something.
    pub(super) fn turn(&mut self, news: bool) -> Option<usize> {
        if self.shared.as_ref().is_some_and(|shared| !shared.draws()) {
            // The canal for which this one drew is drawing again.
            if drawn_line::is_drawn() {
                self.forget();
            }
            return None;
        }
        let here = self.shared.as_ref().map_or(1, SharedTerminal::waiting);
        // Another canal has left; perhaps the one that drew until now.
        if here < self.here || self.here == 0 {
            self.forget();
            self.paused_until = Some(Instant::now() + PAUSE);
        }
        self.here = here;
        if news {
            self.paused_until = None;
        }
        self.paused_until.is_none_or(|until| until <= Instant::now()).then_some(here)
    }

    /// Draws the line, unless it is already there. Redrawing an unchanged line would erase the
    /// output of others.
    pub(super) fn draw(&mut self, text: String) {
        if text == self.text && drawn_line::is_drawn() {
            return;
        }
        if let Some(shared) = &self.shared {
            shared.set_drawn(true);
        }
        drawn_line::draw(|| self.bar.set_message(text.clone()));
        self.text = text;
    }

    /// Erases the line of this canal.
    pub(super) fn erase(&mut self) {
        drawn_line::erase();
        self.forget();
    }

    /// Erases the line, even if another canal drew it, so that the next output starts on an empty
    /// line.
    pub(super) fn end(mut self) {
        let others = self.shared.as_ref().is_some_and(SharedTerminal::is_drawn_by_other);
        // The others must learn first that this one leaves, or they would draw after the command
        // has started.
        self.shared = None;
        if others {
            drawn_line::erase_any();
        }
        self.erase();
    }

    /// Leaves the terminal to another job, which has written to it since.
    pub(super) fn leave(mut self) {
        self.forget();
    }

    /// Forgets the position of the line, which has become invalid.
    fn forget(&mut self) {
        // A new bar draws the next line, because the old one would erase where its line was.
        self.bar.set_draw_target(ProgressDrawTarget::hidden());
        self.bar = new_bar();
        drawn_line::forget();
        if let Some(shared) = &self.shared {
            shared.set_drawn(false);
        }
    }
}

/// A bar without a spinner, because needless redrawing would erase the output of others.
fn new_bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::term_like(Box::new(Stderr)));
    bar.set_style(
        ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()),
    );
    bar
}

/// Standard error, as the target of indicatif. indicatif fills the rest of a line with blanks,
/// which this target drops. Otherwise, the `^C` that the terminal shows would land on the next
/// line, and the line before it could no longer be erased.
#[derive(Debug)]
struct Stderr;

impl Stderr {
    fn write(text: &str) -> io::Result<()> {
        io::stderr().lock().write_all(text.as_bytes())
    }

    /// Writes the escape code that moves the cursor `n` places.
    fn move_cursor(n: usize, towards: char) -> io::Result<()> {
        if n == 0 { Ok(()) } else { Self::write(&format!("\x1b[{n}{towards}")) }
    }
}

impl TermLike for Stderr {
    fn width(&self) -> u16 {
        u16::try_from(columns() + 1).unwrap_or(u16::MAX)
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        Self::move_cursor(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        Self::move_cursor(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        Self::move_cursor(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        Self::move_cursor(n, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        Self::write(&format!("{text}\n"))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        // A canal that was killed may have left its line, with the cursor after it.
        if text.trim().is_empty() { Ok(()) } else { Self::write(&format!("\r{text}\x1b[K")) }
    }

    fn clear_line(&self) -> io::Result<()> {
        Self::write("\r\x1b[K")
    }

    fn flush(&self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}

impl Drop for TerminalLine {
    fn drop(&mut self) {
        // Otherwise, the bar would erase the current line.
        self.bar.set_draw_target(ProgressDrawTarget::hidden());
    }
}

/// The room of a line. The last column stays free for the cursor.
pub(super) fn columns() -> usize {
    let columns = match terminal_size_of(io::stderr()) {
        Some((Width(columns), _)) if columns > 0 => usize::from(columns),
        _ => COLUMNS_ASSUMED,
    };
    columns - 1
}
