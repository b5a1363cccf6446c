//! The parts of the program `canal`, and a daemon for tests of other programs ([`testing`]).
//!
//! Programs that take locks use the package `canal-lock`, which this one re-exports.
//!
//! Modules that this documentation does not show belong to the program and may change at any time.

#[cfg(test)]
#[path = "../tests/fixtures/isolation.rs"]
mod isolation;

use canal_text::{duration, safe_text, shell_word};
#[doc(hidden)]
pub use {
    canal_core as core, canal_daemon as daemon, canal_lock::client, canal_log as log,
    canal_nodes as nodes, canal_protocol as protocol, canal_run as run, canal_sys as sys,
};

pub use canal_lock::{
    Client, Endpoint, Error, ErrorKind, GrantedKey, Guard, Lock, Lost, LostReason, Mode, OnLost,
    SlotInfo, Updates, status,
};

#[doc(hidden)]
pub mod cli;
pub mod testing;
