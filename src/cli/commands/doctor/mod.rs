//! `canal doctor`: looks for what is wrong with a set-up, and says what to do about it.
//!
//! Invariant: it changes nothing, and starts no daemon. Each file of this folder looks at one thing.

mod daemon;
mod disk;
mod finding;
mod kernel;
mod others;
mod place;

use serde::Serialize;

use finding::{Finding, Level};

use crate::cli::arguments::definition::{DoctorArgs, Global};
use crate::cli::connect::Target;
use crate::cli::failed::Failed;
use crate::cli::output::sanitize::sanitize;
use crate::cli::output::stderr::Verbosity;
use crate::cli::output::stdout;
use crate::run::SUCCESS;

/// The exit code if there is something to do.
const PROBLEMS: u8 = 1;

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report<'a> {
    findings: &'a [Finding],
    problems: usize,
}

pub(crate) fn run(args: &DoctorArgs, global: &Global, _: Verbosity) -> Result<u8, Failed> {
    let place = Target::of(global)?.place;
    let (mut findings, can_ask) = place::look(&place, global.socket.is_some());
    findings.extend(if can_ask { daemon::look(&place) } else { daemon::unasked(&place) });
    findings.extend(others::look(&place));
    findings.extend(kernel::look());
    findings.extend(disk::look(&place));
    let problems = findings.iter().filter(|it| it.level == Level::Problem).count();
    let text = if args.json {
        stdout::json(&Report { findings: &findings, problems })?
    } else {
        page(&findings)
    };
    stdout::print(&text)?;
    Ok(if problems == 0 { SUCCESS } else { PROBLEMS })
}

fn page(findings: &[Finding]) -> String {
    let mut page = String::new();
    for Finding { about, level, message, hint } in findings {
        let lead = match level {
            Level::Fine => "ok",
            Level::Note => "note",
            Level::Problem => "PROBLEM",
        };
        page += &format!("{lead:7}  {about:13}  {}\n", sanitize(message));
        if let Some(hint) = hint {
            page += &format!("{:7}  {:13}  hint: {}\n", "", "", sanitize(hint));
        }
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
                "`canal daemon --reload`",
            ),
        ];
        assert_eq!(
            page(&findings),
            "ok       socket         /run/canal/canal.sock\n\
             PROBLEM  configuration  2 edits are not in force\n\
             \u{20}                       hint: `canal daemon --reload`\n"
        );
    }
}
