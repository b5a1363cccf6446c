//! `canal doctor`: finds problems with a setup, and explains how to fix them. Each file of this
//! folder checks one subject.
//!
//! Invariant: it changes nothing, here or at an engine, and starts no daemon.

mod daemon;
mod engine;
mod finding;
mod machine;

use serde::Serialize;

use finding::{Finding, Level};

use crate::cli::output::columns::Screen;
use crate::cli::output::sanitize::fold;
use crate::cli::{DoctorArgs, Result, Target, sanitize, stdout};
use crate::run::SUCCESS;

/// The exit code if there are problems.
const PROBLEMS: u8 = 1;

/// The `--json` output.
#[derive(Debug, Serialize)]
struct Report<'a> {
    findings: &'a [Finding],
    problems: usize,
}

pub(crate) fn run(args: &DoctorArgs, target: &Target) -> Result<u8> {
    let place = &target.place;
    let (mut findings, can_ask) = daemon::socket(place, target.by_environment);
    let (found, daemon) =
        if can_ask { daemon::look(place) } else { (vec![daemon::file(place)], None) };
    findings.extend(found);
    findings.extend(daemon::hooks(place, daemon.as_ref()));
    // A running daemon reports the state of its engine itself.
    let is_asked_for = args.engine.is_some() || std::env::var_os("CANAL_ENGINE").is_some();
    if daemon.is_none() || is_asked_for {
        let seen = engine::look(place, args.engine.as_deref(), &findings);
        findings.extend(seen);
    }
    findings.extend(daemon::other_daemons(place));
    findings.extend(machine::clock(daemon.as_ref()));
    findings.extend(machine::command_path());
    findings.extend(machine::kernel());
    findings.extend(machine::disks(place));
    let problems = findings.iter().filter(|it| it.level == Level::Problem).count();
    // A terminal of unknown size gets the lines of a log.
    let screen = Screen::of_stdout().filter(|screen| screen.lines.is_some());
    let columns = screen.map(|screen| screen.columns);
    let report = Report { findings: &findings, problems };
    stdout::report(&report, args.json, || page(&findings, columns))?;
    Ok(if problems == 0 { SUCCESS } else { PROBLEMS })
}

/// The column where messages begin if they are next to their subject.
const INDENT: usize = 24;

/// With fewer columns, messages are below their subject.
const BESIDE_MIN: usize = 72;

/// How far messages are indented below their subject.
const BELOW_INDENT: usize = 2;

/// One paragraph for each finding. In a log, each message is one line.
fn page(findings: &[Finding], columns: Option<usize>) -> String {
    let (indent, room) = match columns {
        None => (INDENT, usize::MAX),
        Some(columns) if columns >= BESIDE_MIN => (INDENT, columns - INDENT),
        Some(columns) => (BELOW_INDENT, columns.saturating_sub(BELOW_INDENT)),
    };
    let mut page = String::new();
    for Finding { about, level, message, hint } in findings {
        let lead = match level {
            Level::Fine => "ok",
            Level::Note => "note",
            Level::Problem => "PROBLEM",
        };
        let hint = hint.as_ref().map(|hint| format!("hint: {hint}"));
        let texts = std::iter::once(message).chain(&hint);
        let mut lines = texts.flat_map(|text| fold(&sanitize(text), room));
        page += &match indent {
            INDENT => format!("{lead:7}  {about:13}  {}\n", lines.next().unwrap_or_default()),
            _ => format!("{lead:7}  {about}\n"),
        };
        page.extend(lines.map(|line| format!("{:indent$}{line}\n", "")));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_stands_out_and_comes_with_what_to_do() {
        let findings = [
            Finding::fine("socket", "/run/canal/canal.sock"),
            Finding::problem(
                "configuration",
                "2 edits are not in force",
                "run `canal daemon --reload`",
            ),
        ];
        assert_eq!(
            page(&findings, None),
            "ok       socket         /run/canal/canal.sock\n\
             PROBLEM  configuration  2 edits are not in force\n\
             \u{20}                       hint: run `canal daemon --reload`\n"
        );
    }

    #[test]
    fn a_terminal_gets_lines_that_fit() {
        let message = "you have another daemon at /tmp/canal-0/canal.sock, which does not share \
                       locks with yours";
        let findings = [Finding::problem("others", message, "use one of the two sockets")];
        assert_eq!(
            page(&findings, Some(80)),
            "PROBLEM  others         you have another daemon at /tmp/canal-0/canal.sock,\n\
             \u{20}                       which does not share locks with yours\n\
             \u{20}                       hint: use one of the two sockets\n"
        );
        let narrow = page(&findings, Some(40));
        assert!(narrow.starts_with("PROBLEM  others\n  you have another daemon at\n"), "{narrow}");
        assert!(narrow.lines().all(|line| line.len() <= 40), "{narrow}");
    }
}
