//! What canal prints while a request waits.
//!
//! A terminal in whose foreground canal runs shows one line at once, and keeps it up to date. Other
//! outputs get a line after ten seconds, and then at doubling intervals. There is no thread or
//! timer here: [`Waiting::update`] returns when the text changes next.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nix::unistd::{getpgrp, tcgetpgrp};
use terminal_size::{Width, terminal_size_of};

use super::participant::{COMMAND_COLUMNS, holder, named, ordinal, process, wanted};
use super::time::Now;
use crate::cli::arguments::session::inherited;
use crate::cli::output::sanitize::{command_line, sanitize, width};
use crate::cli::output::stderr::Verbosity;
use crate::protocol::{Mode, Progress, WireItem};
use crate::sys::process::parent;

/// A command is not cut shorter than this.
const COMMAND_COLUMNS_MIN: usize = 8;

/// The spinner, the blank after it, and the last column, which stays free for the cursor.
const SPINNER_COLUMNS: usize = 3;

/// So many processes above this one are looked at.
const ANCESTORS_MAX: usize = 64;

/// A line on a terminal counts the seconds.
const REDRAW_AFTER: Duration = Duration::from_secs(1);

/// When a log gets its first line.
const FIRST_LINE_AFTER: Duration = Duration::from_secs(10);

/// The display of one wait.
#[derive(Debug)]
pub(crate) struct Waiting {
    verbosity: Verbosity,
    /// When the daemon first reported progress.
    began: Option<Instant>,
    next_line_after: Duration,
    last: Option<Progress>,
    /// The keys of the request and their modes.
    modes: Vec<(Arc<str>, Mode)>,
    line: Option<ProgressBar>,
    /// Whether the warning about an ancestor was printed.
    warned: bool,
}

impl Waiting {
    /// A display that has printed nothing yet.
    pub(crate) fn new(verbosity: Verbosity, items: &[WireItem]) -> Self {
        let mode = |item: &WireItem| (item.key.clone(), item.mode.unwrap_or(Mode::Counted));
        Self {
            verbosity,
            began: None,
            next_line_after: FIRST_LINE_AFTER,
            last: None,
            modes: items.iter().map(mode).collect(),
            line: None,
            warned: false,
        }
    }

    /// Updates the display by what the daemon reported, if anything. Returns when the text changes
    /// next even if the daemon reports nothing.
    pub(crate) fn update(&mut self, progress: Option<&Progress>) -> Option<Duration> {
        let passed = self.began.get_or_insert_with(Instant::now).elapsed();
        if let Some(progress) = progress {
            self.last = Some(progress.clone());
        }
        if self.verbosity == Verbosity::Quiet || self.last.is_none() {
            return None;
        }
        if progress.is_some() && !self.warned {
            self.warn_of_ancestors();
        }
        if in_foreground() && self.draw() {
            return Some(REDRAW_AFTER);
        }
        Some(self.log(passed))
    }

    /// Warns if an ancestor of this process holds the lock. The daemon cannot detect that deadlock,
    /// because nothing told it that the two belong together.
    fn warn_of_ancestors(&mut self) {
        let Some(last) = &self.last else { return };
        let holders = last.holders.iter().filter(|holder| holder.pid != 0);
        let mut in_the_way = holders.filter(|holder| ancestors().any(|pid| pid == holder.pid));
        let Some(holder) = in_the_way.next() else { return };
        self.warned = true;
        let key = holder.key.as_ref().unwrap_or(&last.key);
        let pid = process(holder.pid);
        self.verbosity.message(&format!(
            "`{key}` is held by {pid}, from which this command was started: if that one waits for \
             this command, neither ever ends"
        ));
        let is_of_ours = inherited().is_some_and(|session| session == holder.session);
        self.verbosity.hint(if is_of_ours {
            "release it before, or leave out `--new-session`: then its locks are not in the way"
        } else {
            "release it before, or run the outer one under `canal run` too: then its locks are \
             not in the way"
        });
    }

    /// Clears the line, so that the command finds the terminal as it was.
    pub(crate) fn end(&mut self) {
        let Some(line) = self.line.take() else { return };
        if !in_foreground() {
            // What it would clear is the shell's by now.
            line.set_draw_target(ProgressDrawTarget::hidden());
        }
        line.finish_and_clear();
    }

    /// Draws the line; false if this terminal cannot have one.
    fn draw(&mut self) -> bool {
        let text = self.text(Some(columns()));
        let line = self.line.get_or_insert_with(new_line);
        line.set_message(text);
        line.tick();
        !line.is_hidden()
    }

    /// Writes a line if one is due. Returns after what time the next one is.
    fn log(&mut self, passed: Duration) -> Duration {
        if passed < self.next_line_after {
            return self.next_line_after - passed;
        }
        // Not once for each time that went by while a terminal was shown the line.
        while self.next_line_after <= passed {
            self.next_line_after *= 2;
        }
        self.verbosity.message(&self.text(None));
        self.next_line_after - passed
    }

    fn text(&self, columns: Option<usize>) -> String {
        let Some(last) = &self.last else { return String::new() };
        let mode = self.modes.iter().find(|(key, _)| **key == *last.key);
        let mode = mode.map_or(Mode::Counted, |(_, mode)| *mode);
        sanitize(&fitted(last, mode, columns, &Now::here()))
    }
}

/// `waiting for db: 2nd of 4, 2 of 2 slots are held, longest by pid 812 `make test` (alice, for 3m12s)`,
/// `waiting to write db: 1st of 1, held for reading by pid 812 `make test` (alice, for 3m12s)`.
/// The command is cut at `command_columns`.
fn sentence(progress: &Progress, mode: Mode, command_columns: usize, now: &Now) -> String {
    let Progress { key, position, waiting, reason, holders } = progress;
    let what = wanted(mode);
    if *waiting == 0 {
        // It is not in any queue yet: its daemon cannot reach its engine.
        return format!("waiting {what} {key}: {reason}");
    }
    let start = format!("waiting {what} {key}: {} of {waiting}", ordinal(*position));
    let Some(longest) = holders.first() else { return format!("{start}, {reason}") };
    let who = holder(longest, command_columns, now);
    let named = named(longest.pid, longest.lease.is_some());
    let elsewhere = longest.host.as_ref().map(|host| format!("{named} on {}", sanitize(host)));
    let named = elsewhere.filter(|named| reason.contains(named)).unwrap_or(named);
    if let Some((before, after)) = around(reason, &named) {
        return format!("{start}, {before}{who}{after}");
    }
    let by = if holders.len() == 1 { "by" } else { "longest by" };
    format!("{start}, {reason}, {by} {who}")
}

/// What stands around a process in a reason that names it: `held for writing by `, ` and 1 other`.
fn around<'a>(reason: &'a str, named: &str) -> Option<(&'a str, &'a str)> {
    let parts = reason.split_once(named)?;
    (!parts.1.starts_with(|c: char| c.is_ascii_digit())).then_some(parts)
}

/// The sentence; its command is cut so that the whole fits into `columns`.
fn fitted(progress: &Progress, mode: Mode, columns: Option<usize>, now: &Now) -> String {
    let text = sentence(progress, mode, COMMAND_COLUMNS, now);
    let over = columns.map_or(0, |columns| width(&text).saturating_sub(columns));
    if over == 0 {
        return text;
    }
    let command = progress.holders.first().and_then(|one| one.command.as_deref());
    let shown = command.map_or(0, |command| width(&command_line(command)).min(COMMAND_COLUMNS));
    sentence(progress, mode, shown.saturating_sub(over).max(COMMAND_COLUMNS_MIN), now)
}

/// The processes above this one, the nearest first.
fn ancestors() -> impl Iterator<Item = u32> {
    let above = |pid: &u32| parent(*pid).filter(|pid| *pid > 1);
    std::iter::successors(parent(std::process::id()), above).take(ANCESTORS_MAX)
}

/// What a line has beside the spinner.
fn columns() -> usize {
    let columns =
        terminal_size_of(io::stderr()).map_or(80, |(Width(columns), _)| usize::from(columns));
    columns.saturating_sub(SPINNER_COLUMNS)
}

/// Whether stderr is a terminal and this process belongs to its foreground job.
fn in_foreground() -> bool {
    let stderr = io::stderr();
    stderr.is_terminal() && tcgetpgrp(&stderr).is_ok_and(|group| group == getpgrp())
}

fn new_line() -> ProgressBar {
    let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{spinner} {wide_msg}");
    // ASCII, because a console need not have more.
    line.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()).tick_chars("|/-\\ "));
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::wording::participant::tests::somebody;
    use crate::cli::wording::time::tests::at;

    fn progress(holders: usize) -> Progress {
        let since = "2026-11-20T14:02:11Z";
        Progress {
            key: "db".to_owned(),
            position: 2,
            waiting: 4,
            reason: "2 of 2 slots are held".to_owned(),
            holders: (0..holders).map(|_| somebody(812, Some("make test"), since)).collect(),
        }
    }

    #[test]
    fn the_sentence_has_place_reason_and_holder() {
        let now = at("2026-11-20T14:05:23Z");
        let start = "waiting for db: 2nd of 4, 2 of 2 slots are held";
        let who = "pid 812 `make test` (root, for 3m12s)";
        let sentence = |holders| fitted(&progress(holders), Mode::Counted, None, &now);
        assert_eq!(sentence(0), start);
        assert_eq!(sentence(1), format!("{start}, by {who}"));
        assert_eq!(sentence(2), format!("{start}, longest by {who}"));
        let mut progress = progress(2);
        progress.reason = "held for reading by pid 812 and 1 other".to_owned();
        assert_eq!(
            fitted(&progress, Mode::Write, None, &now),
            format!("waiting to write db: 2nd of 4, held for reading by {who} and 1 other")
        );
        assert_eq!(around("held by pid 8123", "pid 812"), None);
    }

    #[test]
    fn on_a_narrow_terminal_the_command_gives_way_to_the_time() {
        let now = at("2026-11-20T14:05:23Z");
        let mut progress = progress(1);
        progress.holders[0].command = Some("make -C some/where test".to_owned());
        let whole = width(&fitted(&progress, Mode::Counted, None, &now));
        for columns in [whole - 1, whole - 10] {
            let text = fitted(&progress, Mode::Counted, Some(columns), &now);
            assert_eq!(width(&text), columns, "{text}");
            assert!(text.ends_with("…` (root, for 3m12s)"), "{text}");
        }
        assert!(fitted(&progress, Mode::Counted, Some(20), &now).contains("`make -C…`"));
    }

    #[test]
    fn a_log_gets_a_line_after_ten_seconds_and_then_ever_more_rarely() {
        let mut waiting = Waiting::new(Verbosity::Normal, &[]);
        waiting.last = Some(progress(1));
        for (passed, next) in [(9, 10), (10, 20), (19, 20), (20, 40), (41, 80), (400, 640)] {
            let again = waiting.log(Duration::from_secs(passed));
            assert_eq!(waiting.next_line_after, Duration::from_secs(next), "after {passed} s");
            assert_eq!(again, Duration::from_secs(next - passed), "after {passed} s");
        }
        let mut quiet = Waiting::new(Verbosity::Quiet, &[]);
        assert_eq!(quiet.update(Some(&progress(1))), None);
        assert_eq!(quiet.update(None), None);
    }
}
