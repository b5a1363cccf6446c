//! `canal completions`: prints the scripts of `completions/`, which are part of the program.

use crate::cli::arguments::definition::{CompletionsArgs, Shell};
use crate::cli::failed::Failed;
use crate::cli::output::stdout;
use crate::run::SUCCESS;

pub(crate) fn run(args: &CompletionsArgs) -> Result<u8, Failed> {
    stdout::print(script(args.shell))?;
    Ok(SUCCESS)
}

fn script(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash => include_str!("../../../completions/canal.bash"),
        Shell::Zsh => include_str!("../../../completions/_canal"),
        Shell::Fish => include_str!("../../../completions/canal.fish"),
    }
}
