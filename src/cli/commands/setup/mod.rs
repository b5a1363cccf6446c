//! `canal setup`: sets up one table of locks for all users of the machine, for installations
//! without a package.
//!
//! Invariant: canal prints each change before it makes the first one. It overwrites no file, and
//! follows no symbolic link.

mod files;
mod plan;

use std::io::{self, BufRead, IsTerminal};

use crate::sys::process::user::geteuid;

use crate::cli::arguments::definition::SetupArgs;
use crate::cli::connect::execute;
use crate::cli::{Failed, Result, stdout};
use crate::client::{Client, Start};
use crate::daemon::first_start_statement;
use crate::protocol::StatusQuery;
use crate::protocol::place::{Place, Rule};
use crate::protocol::user_namespace::MachineUid;
use plan::{Plan, Step};

/// The directory whose existence directs all clients to the daemon of the machine.
const SHARED_DIR: &str = "/run/canal";

pub(crate) fn run(args: &SetupArgs) -> Result {
    let plan = Plan::make(args.first_start)?;
    stdout::print(&plan.describe())?;
    if args.dry_run {
        return Ok(());
    }
    if !geteuid().is_root() {
        return Err(unchanged("`canal setup` needs root").hint("run `sudo canal setup`"));
    }
    if !args.yes && !is_confirmed()? {
        return Err(unchanged("not confirmed"));
    }
    for step in &plan.steps {
        carry_out(step)?;
    }
    is_up()
}

/// An error before the first change.
fn unchanged(why: &str) -> Failed {
    Failed::new(format!("{why}: changed nothing"))
}

/// Asks on the terminal.
fn is_confirmed() -> Result<bool> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Err(unchanged("standard input is not a terminal, so canal cannot ask")
            .hint("answer with --yes, or only show the steps with --dry-run"));
    }
    stdout::print("Continue? [y/N] ")?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).map_err(|error| unchanged(&error.to_string()))?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

fn carry_out(step: &Step) -> Result {
    match step {
        Step::Copy { to } => {
            let program = std::fs::read(crate::client::OWN);
            let program = program
                .map_err(|error| Failed::new(format!("cannot read this program: {error}")))?;
            files::create(to, &program, 0o755).map_err(Failed::new)
        }
        Step::Write { path, text, mode } => {
            files::create(path, text.as_bytes(), *mode).map_err(Failed::new)
        }
        Step::Run(command) => execute(command).map_err(undo),
        Step::Keep { .. } => Ok(()),
    }
}

/// Removes what a failed step leaves behind.
fn undo(failed: Failed) -> Failed {
    // While the directory exists, every canal command waits for a daemon in it. At most, it
    // contains the statement of a first start.
    if let Ok(path) = first_start_statement(&Place::shared(MachineUid::own())) {
        let _ = std::fs::remove_file(path);
    }
    let _ = std::fs::remove_dir(SHARED_DIR);
    failed.hint("fix that, then run `canal setup` again; it keeps existing files")
}

/// Whether the daemon of the machine answers.
fn is_up() -> Result {
    let place = Place::find(None, MachineUid::own()).map_err(Failed::new)?;
    if place.rule != Rule::Shared {
        return Err(Failed::new(format!(
            "{SHARED_DIR} does not exist, although the daemon was started"
        )));
    }
    let mut client = Client::connect(&place, Start::Never)?;
    let status = client.status(&StatusQuery::default())?;
    let socket = place.socket.display();
    stdout::print(&format!(
        "done: the daemon is listening at {socket}, pid {}\n",
        status.daemon.pid
    ))?;
    Ok(())
}
