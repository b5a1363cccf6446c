//! `canal status`: holders, waiters, and why a waiter waits.

mod graph;
mod hosts;
mod page;
mod view;
mod why;

use std::io::{self, IsTerminal};

use terminal_size::{Height, Width, terminal_size_of};

use crate::cli::arguments::definition::{Global, StatusArgs};
use crate::cli::connect;
use crate::cli::failed::Failed;
use crate::cli::output::stderr::Verbosity;
use crate::cli::output::stdout;
use crate::cli::output::stdout::ReaderState;
use crate::cli::wording::time::Now;
use crate::client::Next;
use crate::protocol::{Status, StatusQuery};
use crate::run::SUCCESS;
use view::Scope;

/// The width of a terminal whose size is unknown.
const COLUMNS_ASSUMED: usize = 80;

/// Moves to the upper left corner.
const HOME: &str = "\x1b[H";
/// Clears the rest of the line; stands before each line end.
const CLEAR_LINE: &str = "\x1b[K\n";
/// Clears the rest of the screen.
const CLEAR_BELOW: &str = "\x1b[J";

pub(crate) fn run(args: &StatusArgs, global: &Global, verbosity: Verbosity) -> Result<u8, Failed> {
    match &args.why {
        Some(target) => why::run(target, args.json, global),
        None if args.graph => graph::run(args.json, global),
        None => report(args, global, verbosity),
    }
}

fn report(args: &StatusArgs, global: &Global, verbosity: Verbosity) -> Result<u8, Failed> {
    let query = StatusQuery {
        key: args.key.as_ref().map(|key| key.as_str().to_owned()),
        ..StatusQuery::default()
    };
    let target = connect::Target::of(global)?;
    let mut client = target.connect(verbosity)?;
    let report = Report { args, verbose: verbosity == Verbosity::Verbose };
    if args.watch {
        let mut shown = Ok(ReaderState::There);
        let mut last = None;
        let mut each = |status: Option<Status>| {
            last = status.or_else(|| last.take());
            let Some(status) = &last else { return Next::AtChange };
            let now = Now::here();
            shown = report.show_again(status, &now);
            match now.good_for().filter(|_| report.ages()) {
                _ if !matches!(shown, Ok(ReaderState::There)) => Next::Never,
                Some(time) => Next::After(time),
                None => Next::AtChange,
            }
        };
        client.watch(&query, &mut each).map_err(connect::failed)?;
        shown?;
    } else {
        let status = client.status(&query).map_err(connect::failed)?;
        stdout::print_styled(&report.text(&status, Screen::of_stdout(), &Now::here())?)?;
    }
    Ok(SUCCESS)
}

/// How a status is shown.
struct Report<'a> {
    args: &'a StatusArgs,
    verbose: bool,
}

/// The size of a terminal.
#[derive(Clone, Copy, Debug)]
struct Screen {
    columns: usize,
    /// `None` if unknown.
    lines: Option<usize>,
}

impl Screen {
    /// That of stdout, if it is a terminal.
    fn of_stdout() -> Option<Self> {
        let stdout = io::stdout();
        stdout.is_terminal().then(|| match terminal_size_of(&stdout) {
            Some((Width(columns), Height(lines))) if columns > 0 => {
                Self { columns: columns.into(), lines: Some(lines.into()) }
            }
            _ => Self { columns: COLUMNS_ASSUMED, lines: None },
        })
    }
}

impl Report<'_> {
    fn text(&self, status: &Status, screen: Option<Screen>, now: &Now) -> Result<String, Failed> {
        if self.args.json {
            return stdout::json(status);
        }
        let scope = match (&self.args.key, screen) {
            (Some(key), _) => Scope::Key(key.as_str()),
            (None, Some(_)) => Scope::Overview,
            (None, None) => Scope::Everything,
        };
        let page = view::page(status, scope, self.verbose, now);
        Ok(page.render(screen.map(|screen| screen.columns)))
    }

    /// Whether the report contains ages, which change with time alone.
    fn ages(&self) -> bool {
        io::stdout().is_terminal() && !self.args.json
    }

    /// On a terminal in place of the last one, else after it.
    fn show_again(&self, status: &Status, now: &Now) -> Result<ReaderState, Failed> {
        // The terminal may have another size by now.
        let screen = Screen::of_stdout();
        let text = self.text(status, screen, now)?;
        match screen {
            Some(screen) if !self.args.json => stdout::print_styled(&redrawn(&text, screen)),
            _ if self.args.json => stdout::print_styled(&text),
            _ => stdout::print_styled(&format!("{text}\n")),
        }
    }
}

/// The text as it is drawn over what stood on the screen, cut at the end of the screen.
fn redrawn(text: &str, screen: Screen) -> String {
    let lines: Vec<&str> = text.lines().collect();
    // The last line stays free for the cursor.
    let room = screen.lines.map_or(usize::MAX, |lines| lines.saturating_sub(1).max(2));
    let (shown, more) = if lines.len() > room {
        (&lines[..room - 1], format!("… {} more lines{CLEAR_LINE}", lines.len() + 1 - room))
    } else {
        (&lines[..], String::new())
    };
    format!("{HOME}{}{CLEAR_LINE}{more}{CLEAR_BELOW}", shown.join(CLEAR_LINE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_is_never_overfull() {
        let screen = |lines| Screen { columns: 80, lines };
        let text: String = (1..=9).map(|n| format!("{n}\n")).collect();
        for (lines, last) in [(None, "9"), (Some(10), "9"), (Some(9), "… 2 more lines")] {
            let drawn = redrawn(&text, screen(lines));
            let drawn = drawn.strip_suffix(&format!("{CLEAR_LINE}{CLEAR_BELOW}")).unwrap();
            let drawn: Vec<_> = drawn.strip_prefix(HOME).unwrap().split(CLEAR_LINE).collect();
            assert_eq!(*drawn.last().unwrap(), last);
            assert!(drawn.len() < lines.unwrap_or(100));
        }
    }
}
