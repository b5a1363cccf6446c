//! `canal completions`: the scripts of `completions/`, which are part of the program.

use super::args::{CompletionsArgs, Shell};
use super::failed::Failed;
use super::output;
use crate::run::SUCCESS;

pub(crate) fn run(args: &CompletionsArgs) -> Result<u8, Failed> {
    output::print(script(args.shell))?;
    Ok(SUCCESS)
}

fn script(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash => include_str!("../../completions/canal.bash"),
        Shell::Zsh => include_str!("../../completions/_canal"),
        Shell::Fish => include_str!("../../completions/canal.fish"),
    }
}
