//! `canal completions`.
use super::args::CompletionsArgs;
use super::failed::Failed;
use std::process::ExitCode;
pub(crate) fn run(_args: &CompletionsArgs) -> Result<ExitCode, Failed> {
    Err(Failed::new("not yet"))
}
