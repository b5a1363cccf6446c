//! The parts of the program `canal`, and a daemon for tests of other programs ([`testing`]).
//!
//! Programs that take locks use the package `canal-lock`, which this one re-exports.
//!
//! Modules that this documentation does not show belong to the program and may change at any time.

#[cfg(test)]
#[path = "../tests/fixtures/isolation.rs"]
mod isolation;

#[doc(hidden)]
pub use canal_core as core;
#[doc(hidden)]
pub use canal_daemon as daemon;
#[doc(hidden)]
pub use canal_lock::client;
#[doc(hidden)]
pub use canal_log as log;
#[doc(hidden)]
pub use canal_nodes as nodes;
#[doc(hidden)]
pub use canal_protocol as protocol;
#[doc(hidden)]
pub use canal_run as run;
#[doc(hidden)]
pub use canal_sys as sys;
use canal_text::{duration, safe_text, shell_word};

pub use canal_lock::{
    Client, Endpoint, Error, ErrorKind, GrantedKey, Guard, Lock, Lost, LostReason, Mode, OnLost,
    SlotInfo, Updates, status,
};

#[doc(hidden)]
pub mod cli;
pub mod testing;
