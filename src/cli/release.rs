//! `canal release`.
use super::args::{Global, ReleaseArgs};
use super::failed::Failed;
use super::say::Voice;
use std::process::ExitCode;
pub(crate) fn run(
    _args: &ReleaseArgs,
    _global: &Global,
    _voice: Voice,
) -> Result<ExitCode, Failed> {
    Err(Failed::new("not yet"))
}
