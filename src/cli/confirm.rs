//! Asks for confirmation on the terminal before canal ends or breaks something.

use std::io::{self, IsTerminal};

use crate::cli::{Failed, Result, Verbosity};

/// Asks the question that follows the list of affected processes. Without a terminal, `--yes` is
/// required: `again` is the command with it. `undone` is the message that nothing was done.
pub(super) fn confirm(question: &str, undone: &str, again: &str, verbosity: Verbosity) -> Result {
    let hint = format!("run `{again}` to skip the question");
    if verbosity < Verbosity::Normal {
        return Err(Failed::new("-q hides the question: give --yes").hint(hint));
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failed::new(format!("{undone}: there is no terminal to ask on")).hint(hint));
    }
    verbosity.question(&format!("{question} [y/N]"));
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer);
    if read.is_err() || !matches!(answer.trim(), "y" | "Y" | "yes") {
        return Err(Failed::new(undone));
    }
    Ok(())
}
