//! `canal completions`: the scripts of `completions/`, which are part of the program.

use std::process::ExitCode;

use super::args::{CompletionsArgs, Shell};
use super::failed::Failed;
use super::output;

pub(crate) fn run(args: &CompletionsArgs) -> Result<ExitCode, Failed> {
    output::print(script(args.shell))?;
    Ok(ExitCode::SUCCESS)
}

fn script(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash => include_str!("../../completions/canal.bash"),
        Shell::Zsh => include_str!("../../completions/_canal"),
        Shell::Fish => include_str!("../../completions/canal.fish"),
    }
}
