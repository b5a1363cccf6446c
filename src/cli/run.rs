//! `canal run`.
use super::args::{Global, RunArgs};
use super::failed::Failed;
use super::say::Voice;
use std::process::ExitCode;
pub(crate) fn run(_args: &RunArgs, _global: &Global, _voice: Voice) -> Result<ExitCode, Failed> {
    Err(Failed::new("not yet"))
}
