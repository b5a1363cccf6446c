//! The few system calls that nix lacks, and what the kernel knows of processes and peers.
//!
//! The only `unsafe` of the project is here. Every call names the
//! kernel that it needs; where an older one (from 5.10) must do, the fallback is here too, and
//! [`kernel`] can be told to pretend that it is older, so that tests run the fallbacks.
#![expect(unsafe_code, reason = "system calls without a safe wrapper live here and nowhere else")]

pub mod abstract_name;
pub mod clock;
pub mod deadline;
pub mod detach;
pub mod dir;
pub mod fds;
pub mod kernel;
pub mod memory;
pub mod peer;
pub mod pidfd;
pub mod process;
pub mod signals;
pub mod startup;

#[cfg(test)]
pub(crate) mod rerun;
