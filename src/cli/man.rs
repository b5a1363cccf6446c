//! `canal man`.
use super::args::ManArgs;
use super::failed::Failed;
use std::process::ExitCode;
pub(crate) fn run(_args: &ManArgs) -> Result<ExitCode, Failed> {
    Err(Failed::new("not yet"))
}
pub(crate) fn pages() -> Vec<(String, Vec<u8>)> {
    Vec::new()
}
