//! `canal acquire`.
use super::args::{AcquireArgs, Global};
use super::failed::Failed;
use super::say::Voice;
use std::process::ExitCode;
pub(crate) fn run(
    _args: &AcquireArgs,
    _global: &Global,
    _voice: Voice,
) -> Result<ExitCode, Failed> {
    Err(Failed::new("not yet"))
}
