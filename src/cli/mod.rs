//! The command line. `commands` has one file per subcommand, `arguments` parses, `lock_source`
//! takes locks, `wording` writes the sentences, `progress` shows a wait, and `output` writes to
//! stdout and stderr.
//!
//! Invariant: data goes to stdout, messages go to stderr through `output::stderr`, and each exit
//! code of canal itself is one of [`OwnCode`](crate::run::OwnCode).

mod arguments;
mod commands;
mod completions;
mod connect;
mod find_job;
mod kill_and_supersede;
mod lock_source;
mod man;
mod node_list;
mod output;
mod owner;
mod progress;
mod user_name;
mod wording;

pub use man::pages as man_pages;

// The names that most commands use.
pub(crate) use canal_text::plural;

pub(crate) use arguments::definition::{
    AcquireArgs, BridgeArgs, CompletionKind, DaemonArgs, DoctorArgs, Global, HistoryArgs, HowArgs,
    JobWaitArgs, JobserverArg, KillArgs, LeaderArgs, LogArgs, PriorityArgs, ReleaseArgs, RenewArgs,
    ResizeArgs, RunArgs, SetupArgs, Shell, StatsArgs, StatusArgs, TestArgs, TopArgs, TraceArgs,
};
pub(crate) use arguments::parse_value::{Length, millis, short, stated, stated_ms};
pub(crate) use connect::Target;
pub(crate) use output::sanitize::{command_line, cut, sanitize};
pub(crate) use output::stderr::{Failed, Result, Verbosity};
pub(crate) use output::{stderr, stdout};
pub(crate) use wording::time::Now;
pub(crate) use wording::usage_error::wrong;

use std::ffi::OsString;

use clap::{CommandFactory, Parser};

use crate::run::SUCCESS;
use crate::sys::signals;
use arguments::definition::{Cli, Verb};
use arguments::fast_path;
use commands::{
    acquire, config, daemon, doctor, history, jobs, kill, leader, release, renew, resize, run,
    setup, status, test, top,
};
use wording::usage_error;

/// Runs the command line of this process, with the program name first, and returns its exit code.
/// `canal run` does not return if it becomes its command.
pub fn main(words: &[OsString]) -> u8 {
    signals::obey_as_process_1();
    let failed = |failed| stderr::failure(&failed);
    if let Some((global, args)) = fast_path::read(words.iter().map(OsString::as_os_str)) {
        global.verbosity().apply();
        return run::run(&args, &global).unwrap_or_else(failed);
    }
    let mut cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => return usage_error::report(&error, words),
    };
    let is_submit = matches!(cli.verb, Some(Verb::Submit(_)));
    if let Some(Verb::Run(args) | Verb::Submit(args)) = &mut cli.verb {
        args.how.detach |= is_submit;
        // A background job may outlive the command that submits it.
        args.asked.session.new_session |= args.how.detach;
    }
    cli.global.verbosity().apply();
    dispatch(&cli).unwrap_or_else(failed)
}

/// The definition of the command line, which is the source of the help, the man pages and the tests
/// of the completions.
pub fn definition() -> clap::Command {
    let mut definition = Cli::command();
    definition.build();
    definition
}

fn dispatch(cli: &Cli) -> Result<u8> {
    let global = &cli.global;
    let target = || Target::of(global);
    let done = match &cli.verb {
        None => Err(usage_error::nothing_to_do()),
        Some(Verb::Run(args) | Verb::Submit(args)) if args.how.detach => {
            return jobs::submit(args, global);
        }
        Some(Verb::Run(args) | Verb::Submit(args)) => return run::run(args, global),
        Some(Verb::Wait(args)) => return jobs::wait(args, &target()?),
        Some(Verb::Top(args)) => return top::run(args, target()?),
        Some(Verb::Kill(args)) => return kill::run(args, global),
        Some(Verb::Doctor(args)) => return doctor::run(args, &target()?),
        Some(Verb::Log(args)) => jobs::log(args, &target()?),
        Some(Verb::Priority(args)) => jobs::priority(args, &target()?),
        Some(Verb::Acquire(args)) => acquire::run(args, global),
        Some(Verb::Release(args)) => release::run(args, global),
        Some(Verb::Renew(args)) => renew::run(args, global),
        Some(Verb::Status(args)) => status::run(args, &target()?),
        Some(Verb::History(args)) => history::records::run(args, &target()?),
        Some(Verb::Stats(args)) => history::stats::run(args, &target()?),
        Some(Verb::Trace(args)) => history::trace::run(args, &target()?),
        Some(Verb::Metrics) => daemon::metrics(&target()?),
        Some(Verb::Leader(args)) => leader::run(args, &target()?),
        Some(Verb::Test(args)) => test::run(args, global),
        Some(Verb::Resize(args)) => resize::run(args, global),
        Some(Verb::Daemon(args)) => daemon::run(args, global),
        Some(Verb::Bridge(args)) => daemon::bridge(args, &target()?),
        Some(Verb::Config { json }) => config::run(*json, &target()?),
        Some(Verb::Setup(args)) => setup::run(args),
        Some(Verb::Completions { shell }) => completions::run(*shell),
        Some(Verb::Man { dir }) => man::run(dir),
        Some(Verb::Complete { what, prefix }) => {
            completions::complete(*what, prefix.clone(), global);
            Ok(())
        }
        Some(Verb::DeadlockWatcher) => daemon::deadlock_watcher(&target()?),
    };
    done.map(|()| SUCCESS)
}
