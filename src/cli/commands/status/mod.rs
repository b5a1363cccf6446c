//! `canal status`: shows holders, waiters, why a waiter waits, and the leases that ended.

mod ended_leases;
mod hosts;
pub(super) mod render;
pub(super) mod scope;
pub(super) mod waits;

use std::io::{self, IsTerminal};
use std::time::Instant;

use crate::cli::find_job::{add_numbers, look_up};
use crate::cli::output::columns::{Page, Screen, can_move_cursor};
use crate::cli::output::stdout::HasReader;
use crate::cli::{Now, Result, StatusArgs, Target, Verbosity, stderr, stdout};
use crate::client::Watch;
use crate::protocol::Status;
use crate::run::job_files::Folder;
use crate::sys::process::writers_of;
use scope::Scope;

/// Moves to the upper left corner.
const HOME: &str = "\x1b[H";
/// Clears the rest of the line, before each line end.
const CLEAR_LINE: &str = "\x1b[K\n";
/// Clears the rest of the screen.
const CLEAR_BELOW: &str = "\x1b[J";

pub(crate) fn run(args: &StatusArgs, target: &Target) -> Result {
    match &args.why {
        Some(of) => waits::why(of, args.json, target),
        None if args.graph => waits::graph(args.json, target),
        None if args.ended => ended_leases::run(args, target),
        None => report(args, target),
    }
}

fn report(args: &StatusArgs, target: &Target) -> Result {
    let (mut client, key, session) = look_up(args.key.as_ref(), target)?;
    let report = Report { args, session, verbose: stderr::shows(Verbosity::Verbose) };
    let query = args.only.query(key, report.session.clone());
    let jobs = Folder::of(&target.place);
    if args.watch {
        let (mut watch, mut last, mut until) = (Watch::new(query), None, None);
        loop {
            let next = watch.next(&mut client, until)?;
            if next.is_none() && watch.over {
                break;
            }
            last = next.map(|status| completed(status, &jobs)).or(last);
            let Some(status) = &last else { continue };
            let now = Now::here();
            if !report.show_again(status, &now)? {
                break;
            }
            // The ages on a terminal change even without news.
            let good_for = now.good_for().filter(|_| io::stdout().is_terminal() && !args.json);
            until = good_for.and_then(|time| Instant::now().checked_add(time));
        }
    } else {
        let status = completed(client.status(&query)?, &jobs);
        stdout::print_styled(&report.text(&status, Screen::of_stdout(), &Now::here())?)?;
    }
    Ok(())
}

/// Adds the processes that keep a hold, and the numbers of background jobs. canal looks for them
/// itself rather than the daemon: the kernel then shows each user only what that user may see, and
/// the daemon is spared the work.
pub(super) fn completed(mut status: Status, jobs: &Folder) -> Status {
    add_numbers(&mut status, jobs);
    for holder in status.keys.iter_mut().flat_map(|key| &mut key.holders) {
        if let Some(children) = &mut holder.children {
            children.pids = writers_of(children.device, children.inode).unwrap_or_default();
        }
    }
    status
}

/// How to show a status.
struct Report<'a> {
    args: &'a StatusArgs,
    /// The session of the job that the operand names in place of a key.
    session: Option<String>,
    verbose: bool,
}

impl Report<'_> {
    fn text(&self, status: &Status, screen: Option<Screen>, now: &Now) -> Result<String> {
        if self.args.json {
            return stdout::json(status);
        }
        Ok(self.page(status, screen, now).render(screen.map(|screen| screen.columns)))
    }

    fn page(&self, status: &Status, screen: Option<Screen>, now: &Now) -> Page {
        let scope = match (&self.args.key, screen) {
            (Some(key), _) if self.session.is_none() => Scope::Key(key.as_str()),
            (None, Some(_)) => Scope::Overview,
            _ => Scope::Everything,
        };
        let is_part = self.session.is_some() || self.args.only.is_set();
        if self.args.one_line {
            return render::one_line_each(status, now);
        }
        render::page(status, scope, is_part, self.verbose, now)
    }

    /// Shows the page again: on a terminal in place of the last one, elsewhere after it.
    fn show_again(&self, status: &Status, now: &Now) -> Result<HasReader> {
        // The size of the terminal may have changed.
        let screen = Screen::of_stdout();
        if let Some(screen) = screen.filter(|_| can_move_cursor() && !self.args.json) {
            let page = self.page(status, Some(screen), now);
            return stdout::draw(&redrawn(&stdout::styled(&on_screen(&page, screen))));
        }
        let end = if self.args.json { "" } else { "\n" };
        stdout::print_styled(&(self.text(status, screen, now)? + end))
    }
}

/// As much of the page as fits on the screen, and a line about what does not fit.
fn on_screen(page: &Page, screen: Screen) -> String {
    // The last line stays free for the cursor.
    let room = screen.lines.map_or(usize::MAX, |lines| lines.saturating_sub(1).max(2));
    page.fit(screen.columns, room, render::left_out)
}

/// The text in a form that replaces the previous content of the screen.
fn redrawn(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    format!("{HOME}{}{CLEAR_LINE}{CLEAR_BELOW}", lines.join(CLEAR_LINE))
}

#[cfg(test)]
mod tests;
