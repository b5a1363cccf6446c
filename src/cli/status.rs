//! `canal status`.
use super::args::{Global, StatusArgs};
use super::failed::Failed;
use super::say::Voice;
use std::process::ExitCode;
pub(crate) fn run(_args: &StatusArgs, _global: &Global, _voice: Voice) -> Result<ExitCode, Failed> {
    Err(Failed::new("not yet"))
}
