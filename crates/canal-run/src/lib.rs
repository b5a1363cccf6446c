//! Becomes the command, or supervises it as its parent.
//!
//! By default `canal run` becomes the command ([`become_command()`]). With an option that needs a
//! parent ([`Limits`]), or over an engine, where a lock can be lost, [`supervise()`] forks first;
//! the child then takes the lock and becomes the command in the same way. So the owner of the lock
//! is always the command itself, and the death of a parent never frees the lock under it.
//!
//! Invariant: the command finds everything as canal's caller set it.

mod adopted_processes;
mod become_command;
mod command;
mod exit_code;
mod fate_query;
pub mod job_files;
pub mod makeflags;
pub mod nodes;
mod signals_passed_on;
mod supervise;

pub use become_command::{Asked, ChildChannel, NotBegun, Taken, become_command};
pub use canal_sys::process::find_command::NotRun;
pub use command::Command;
pub use exit_code::{Ended, OwnCode, SUCCESS};
pub use supervise::{KILL_AFTER_DEFAULT, Limits, SupervisorHooks, supervise};

/// Keeps the tests apart from the user's environment and processes.
#[cfg(test)]
#[path = "../../../tests/fixtures/isolation.rs"]
mod isolation;
