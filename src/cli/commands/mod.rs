//! The subcommands, one file or folder each, with a `run` that returns the exit code.
//!
//! Invariant: a command that fails returns [`Failed`](crate::cli::Failed), and `cli::main`
//! prints it.

pub(super) mod acquire;
pub(super) mod config;
pub(super) mod daemon;
pub(super) mod doctor;
pub(super) mod history;
pub(super) mod jobs;
pub(super) mod kill;
pub(super) mod leader;
pub(super) mod release;
pub(super) mod renew;
pub(super) mod resize;
pub(super) mod run;
pub(super) mod setup;
pub(super) mod status;
pub(super) mod test;
pub(super) mod top;
