//! `canal resize`.
use super::args::{Global, ResizeArgs};
use super::failed::Failed;
use super::say::Voice;
use std::process::ExitCode;
pub(crate) fn run(_args: &ResizeArgs, _global: &Global, _voice: Voice) -> Result<ExitCode, Failed> {
    Err(Failed::new("not yet"))
}
