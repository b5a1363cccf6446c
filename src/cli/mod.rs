//! The command line: one file per subcommand, and what they share.
//!
//! Data goes to stdout, canal's own words go to stderr through `say`, and every way to end is
//! one of the codes in [`OwnCode`](crate::run::OwnCode).

mod acquire;
mod args;
mod ask;
mod clean;
mod complete;
mod completions;
mod connect;
mod cycle;
mod daemon;
mod duration;
mod failed;
mod handle;
mod lock;
mod lock_lost;
mod lost;
mod man;
mod number;
mod output;
mod owner;
mod plain;
mod refused;
mod release;
mod renew;
mod resize;
mod run;
mod say;
mod session;
mod signal;
mod status;
mod sudo;
mod usage;
mod user;
mod wait;
mod waiting;
mod when;
mod who;

use clap::{CommandFactory, Parser};

use args::{Cli, Verb};
use failed::Failed;

use crate::sys::startup::Words;

/// Runs the command line of this process and returns its exit code; `canal run` does not return
/// if it became its command.
#[must_use]
pub fn main(words: Words) -> u8 {
    let Some((global, args)) = plain::read(words.iter()) else {
        return by_clap(words);
    };
    let voice = global.voice();
    run::run(&args, &global, voice).unwrap_or_else(|failed| failed.report(voice))
}

/// Whatever is not a plain `canal run`, with the help of clap.
fn by_clap(words: Words) -> u8 {
    let cli = match Cli::try_parse_from(words.iter()) {
        Ok(cli) => cli,
        Err(error) => return usage::report(&error, words),
    };
    let voice = cli.global.voice();
    dispatch(&cli, voice).unwrap_or_else(|failed| failed.report(voice))
}

/// The definition of the command line, from which help, man pages and the tests of the
/// completions are made.
#[must_use]
pub fn definition() -> clap::Command {
    let mut definition = Cli::command();
    definition.build();
    definition
}

/// The man pages as `canal man` writes them: file name and text.
#[must_use]
pub fn man_pages() -> Vec<(String, String)> {
    man::pages()
}

fn dispatch(cli: &Cli, voice: say::Voice) -> Result<u8, Failed> {
    let global = &cli.global;
    match &cli.verb {
        None => Err(usage::nothing_to_do()),
        Some(Verb::Run(args)) => run::run(args, global, voice),
        Some(Verb::Acquire(args)) => acquire::run(args, global, voice),
        Some(Verb::Release(args)) => release::run(args, global, voice),
        Some(Verb::Renew(args)) => renew::run(args, global, voice),
        Some(Verb::Status(args)) => status::run(args, global, voice),
        Some(Verb::Resize(args)) => resize::run(args, global, voice),
        Some(Verb::Daemon(args)) => daemon::run(args, global, voice),
        Some(Verb::Completions(args)) => completions::run(args),
        Some(Verb::Man(args)) => man::run(args),
        Some(Verb::Complete(args)) => Ok(complete::run(args, global)),
    }
}
