//! Shows progress while a request waits.
//!
//! In the foreground of a terminal, one canal draws one line for all that wait there. A log gets a
//! line after 2 s, another after 10 s, and then at doubling intervals. The terminal counts as a log
//! while a command of the same job holds the lock, because it shows that command's output. There is
//! no thread or timer: [`Waiting::update`] returns when the text changes next.

use std::io::{self, IsTerminal, Write as _};
use std::process::id;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};
use nix::unistd::{Pid, getpgid, getpgrp, tcgetpgrp};
use terminal_size::{Width, terminal_size_of};

use crate::cli::{Now, Verbosity, stderr};
use crate::protocol::{HolderInfo, Mode, Progress, WireItem};
use crate::sys::clock::boottime_ms;
use crate::sys::process::ancestors;
use crate::sys::terminal::drawn_line;
use crate::sys::terminal::shared::SharedTerminal;

use super::arguments::request::{ProgressArg, inherited};
use super::output::columns::{COLUMNS_ASSUMED, can_move_cursor};
use super::wording::waiting::{self, Wait};
use crate::cli::wording::holders_and_waiters::process;

/// How often canal checks whether its line must change, or whether it is its turn to draw.
const REDRAW_AFTER: Duration = Duration::from_secs(1);

/// How often a canal in the background checks whether it is in the foreground again.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// When a log gets its first line; with `-v`, it gets one immediately.
const FIRST_LINE_AFTER: Duration = Duration::from_secs(2);

/// When a log gets its second line; later ones follow at doubling intervals.
const SECOND_LINE_AFTER: Duration = Duration::from_secs(10);

/// The place in which canal shows the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outlet {
    /// A line on the terminal.
    Line,
    /// Lines in a log.
    Log,
    /// Nowhere for now, because another job has the terminal.
    Background,
    /// Nowhere.
    None,
}

/// The display of one wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    choice: ProgressArg,
    /// When the daemon first reported progress.
    began: Option<Instant>,
    next_line_after: Duration,
    /// The daemon's last report, and when it arrived.
    last: Option<(Progress, Instant)>,
    /// New nodes, and when they begin to grant, in milliseconds of CLOCK_BOOTTIME.
    new_nodes: Option<(Vec<String>, u64)>,
    /// The items of the request.
    items: Vec<WireItem>,
    line: Option<TerminalLine>,
    /// Whether canal has printed the warning about an ancestor.
    warned: bool,
}

impl Waiting {
    /// A display that has not printed anything.
    pub(crate) fn new(verbosity: Verbosity, choice: ProgressArg, items: &[WireItem]) -> Self {
        let choice = if verbosity < Verbosity::Normal { ProgressArg::None } else { choice };
        let at_once = verbosity >= Verbosity::Verbose;
        let next_line_after = if at_once { Duration::ZERO } else { FIRST_LINE_AFTER };
        Self { choice, next_line_after, items: items.to_vec(), ..Self::default() }
    }

    /// Updates the display with the daemon's report, if there is one. Returns when the text changes
    /// next even if the daemon reports nothing.
    pub(crate) fn update(&mut self, progress: Option<&Progress>) -> Option<Duration> {
        let passed = self.began.get_or_insert_with(Instant::now).elapsed();
        if let Some(progress) = progress {
            self.last = Some((progress.clone(), Instant::now()));
        }
        if self.last.is_none() && self.new_nodes.is_none() {
            return None;
        }
        if progress.is_some() && !self.warned {
            self.warn_of_ancestors();
        }
        let outlet = outlet(self.choice);
        if outlet != Outlet::Line
            && let Some(mut line) = self.line.take()
        {
            // Leaves the terminal to another job, which has written to it since.
            line.forget();
        }
        match outlet {
            Outlet::Line => {
                self.draw(progress.is_some(), passed);
                Some(REDRAW_AFTER)
            }
            Outlet::Log => Some(self.log(passed, 1)),
            Outlet::Background => Some(LOOK_AGAIN_AFTER),
            Outlet::None => None,
        }
    }

    /// Counts down to the time at which new nodes begin to grant, instead of showing a report.
    pub(crate) fn count_down(&mut self, names: &[String], until_ms: u64) {
        self.new_nodes = Some((names.to_owned(), until_ms));
    }

    /// Prints a note above the display.
    pub(crate) fn note(&mut self, text: &str) {
        self.line.iter_mut().for_each(TerminalLine::erase);
        stderr::note(text);
    }

    /// Warns if an ancestor of this process holds the lock. The daemon cannot detect that deadlock,
    /// because it does not know that the two belong together.
    fn warn_of_ancestors(&mut self) {
        let Some((last, _)) = &self.last else { return };
        let mut holders = last.holders.iter().filter(|holder| holder.pid != 0);
        let is_above = |holder: &&HolderInfo| ancestors(id()).any(|pid| pid == holder.pid);
        let Some(holder) = holders.find(is_above) else { return };
        let key = holder.key.as_ref().unwrap_or(&last.key);
        let pid = process(holder.pid);
        let note = format!(
            "{pid}, which started this command, holds `{key}`: if it waits for this command, \
             neither will ever end"
        );
        let is_of_ours = inherited().is_some_and(|session| session == holder.session);
        self.warned = true;
        self.note(&note);
        stderr::advice(if is_of_ours {
            "release the lock first, or leave out `--new-session`, so that the locks of the outer \
             command do not block this one"
        } else {
            "release the lock first, or run the outer command under `canal run` too, so that its \
             locks do not block this command"
        });
    }

    /// Erases the line, so that the command finds the terminal as it was.
    pub(crate) fn end(&mut self) {
        let Some(mut line) = self.line.take() else { return };
        if outlet(self.choice) == Outlet::Line { line.end() } else { line.forget() }
    }

    /// Draws the line, if it is this canal's turn.
    fn draw(&mut self, news: bool, passed: Duration) {
        let line = self.line.get_or_insert_with(TerminalLine::begin);
        let Some(here) = line.turn(news) else { return };
        // Whether a holder belongs to the job of this process, as the recipes of one make(1) do.
        let group = getpgrp();
        let is_ours = |pid: u32| getpgid(Some(Pid::from_raw(pid.cast_signed()))) == Ok(group);
        let mut holders = self.last.iter().flat_map(|(last, _)| &last.holders);
        if holders.any(|holder| holder.pid != 0 && is_ours(holder.pid)) {
            line.erase();
            if self.choice == ProgressArg::Auto {
                self.log(passed, here);
            }
            return;
        }
        let text = self.text(Some(columns()), here, None);
        if let Some(line) = &mut self.line {
            line.draw(&text);
        }
    }

    /// Writes a line if one is due. Returns the time until the next one.
    fn log(&mut self, passed: Duration, here: usize) -> Duration {
        if passed < self.next_line_after {
            return self.next_line_after - passed;
        }
        // Skips the lines whose time passed while the terminal showed the line.
        while self.next_line_after <= passed {
            self.next_line_after = (2 * self.next_line_after).max(SECOND_LINE_AFTER);
        }
        let text = self.text(None, here, Some(passed));
        stderr::note(&format!("{} {text}", Now::here().stamp()));
        self.next_line_after - passed
    }

    fn text(&self, columns: Option<usize>, here: usize, waited: Option<Duration>) -> String {
        if let Some((names, until)) = &self.new_nodes {
            return waiting::new_nodes(names, until.saturating_sub(boottime_ms()), columns);
        }
        let Some((progress, heard)) = &self.last else { return String::new() };
        let item = self.items.iter().find(|item| *item.key == *progress.key);
        let mode = item.and_then(|item| item.mode).unwrap_or(Mode::Counted);
        let wait = Wait { progress, mode, here, waited, heard_ago: heard.elapsed() };
        waiting::fitted(&wait, columns, &Now::here())
    }
}

/// Chooses the outlet for a wait now. This changes when a job moves between foreground and
/// background.
fn outlet(choice: ProgressArg) -> Outlet {
    let stderr = io::stderr();
    let is_terminal = stderr.is_terminal();
    let job = if is_terminal { tcgetpgrp(&stderr).ok() } else { None };
    // The kernel may stop a background job that writes to its terminal.
    let in_background = job.is_some_and(|group| group != getpgrp());
    match choice {
        ProgressArg::None => Outlet::None,
        _ if in_background => Outlet::Background,
        ProgressArg::Log => Outlet::Log,
        ProgressArg::Tty if is_terminal => Outlet::Line,
        ProgressArg::Tty => Outlet::None,
        // Another job may own a terminal that does not control this process.
        ProgressArg::Auto if job.is_some() && can_move_cursor() => Outlet::Line,
        ProgressArg::Auto => Outlet::Log,
    }
}

/// How long canals draw nothing after one of them has left this terminal, unless the daemon reports
/// something. The canal that left may have become its command, whose output begins where the line
/// was.
const PAUSE: Duration = Duration::from_secs(3);

/// The line of this canal.
#[derive(Debug)]
struct TerminalLine {
    /// `None` if the terminal cannot be shared: then each canal draws.
    shared: Option<SharedTerminal>,
    /// How many canals wait here; 0 until this one draws.
    here: usize,
    text: String,
    paused_until: Option<Instant>,
}

impl TerminalLine {
    /// Starts to wait on the terminal, before the daemon has reported anything.
    fn begin() -> Self {
        drawn_line::erase_on_signals();
        let shared = SharedTerminal::join(io::stderr()).ok();
        Self { shared, here: 0, text: String::new(), paused_until: None }
    }

    /// If it is this canal's turn to draw, returns how many canals wait on the terminal. `news`
    /// means that the daemon has just reported something.
    fn turn(&mut self, news: bool) -> Option<usize> {
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
    fn draw(&mut self, text: &str) {
        if text != self.text || !drawn_line::is_drawn() {
            self.shared.iter().for_each(|shared| shared.set_drawn(true));
            drawn_line::draw(|| draw(text));
            self.text = text.to_owned();
        }
    }

    /// Erases the line of this canal.
    fn erase(&mut self) {
        drawn_line::erase();
        self.forget();
    }

    /// Erases the line, even if another canal drew it, so that the next output starts on an empty
    /// line.
    fn end(mut self) {
        let others = self.shared.as_ref().is_some_and(SharedTerminal::is_drawn_by_other);
        // The others must learn first that this one leaves, or they would draw after the command
        // has started.
        self.shared = None;
        if others {
            drawn_line::erase_any();
        }
        self.erase();
    }

    /// Forgets the position of the line, which has become invalid.
    fn forget(&mut self) {
        drawn_line::forget();
        self.shared.iter().for_each(|shared| shared.set_drawn(false));
    }
}

/// Draws a line in place of the one before. It has a bar of its own, because a bar that draws
/// again, or ends, erases where its line was; and no spinner, because needless redrawing would
/// erase the output of others.
fn draw(text: &str) {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::term_like(Box::new(Stderr)));
    let style = ProgressStyle::with_template("{msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.set_message(text.to_owned());
    bar.set_draw_target(ProgressDrawTarget::hidden());
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
}

impl TermLike for Stderr {
    fn width(&self) -> u16 {
        u16::try_from(columns() + 1).unwrap_or(u16::MAX)
    }

    // The bar has one line, so indicatif only moves the cursor by 0.
    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
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

/// The room of a line. The last column stays free for the cursor.
fn columns() -> usize {
    let size = terminal_size_of(io::stderr()).filter(|(Width(columns), _)| *columns > 0);
    size.map_or(COLUMNS_ASSUMED, |(Width(columns), _)| columns.into()) - 1
}

#[cfg(test)]
mod tests {
    use crate::cli::wording::waiting::tests::progress;

    use super::*;

    fn waiting(verbosity: Verbosity) -> Waiting {
        let mut waiting = Waiting::new(verbosity, ProgressArg::Auto, &[]);
        waiting.last = Some((progress(1), Instant::now()));
        waiting
    }

    #[test]
    fn a_log_gets_a_line_after_ten_seconds_and_then_ever_more_rarely() {
        let mut waiting = waiting(Verbosity::Normal);
        for (passed, next) in [(9, 10), (10, 20), (19, 20), (20, 40), (41, 80), (400, 640)] {
            let again = waiting.log(Duration::from_secs(passed), 1);
            assert_eq!(waiting.next_line_after, Duration::from_secs(next), "after {passed} s");
            assert_eq!(again, Duration::from_secs(next - passed), "after {passed} s");
        }
    }

    #[test]
    fn a_verbose_log_gets_a_line_at_once() {
        let mut waiting = waiting(Verbosity::Verbose);
        for (passed, next) in [(0, 10), (9, 10), (10, 20), (20, 40)] {
            waiting.log(Duration::from_secs(passed), 1);
            assert_eq!(waiting.next_line_after, Duration::from_secs(next), "after {passed} s");
        }
    }

    #[test]
    fn quiet_and_none_show_nothing_and_never_wake() {
        let mut quiet = waiting(Verbosity::Quiet);
        assert_eq!(quiet.update(Some(&progress(1))), None);
        assert_eq!(quiet.update(None), None);
        let mut none = waiting(Verbosity::Normal);
        none.choice = ProgressArg::None;
        assert_eq!(none.update(Some(&progress(1))), None);
    }
}
