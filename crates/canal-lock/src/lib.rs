//! canal limits how many commands run at once, and shows which run, which wait, and why. Programs
//! use this library to take such locks themselves.
//!
//! ```
//! use std::time::Duration;
//!
//! use canal_lock::Lock;
//!
//! # fn main() -> Result<(), canal_lock::Error> {
//! # let daemon = canal::testing::Daemon::start()?;
//! # let endpoint = daemon.endpoint();
//! let lock = Lock::new("gpu").slots(2).wait(Duration::from_secs(60));
//! # let lock = lock.endpoint(&endpoint);
//! let guard = lock.acquire()?;
//! println!("on GPU {:?}", guard.slot());
//! drop(guard);
//! # Ok(())
//! # }
//! ```
//!
//! A daemon on this machine keeps the locks. All programs of a user share it with the commands that
//! `canal run` runs: a program that holds `Lock::new("gpu").slots(2)` makes `canal run --key gpu
//! --slots 2 -- ./train` wait once both slots are taken, and the other way round. The daemon starts
//! by itself if the `canal` program is installed.
//!
//! | to | use |
//! |---|---|
//! | take a lock | [`Lock`] |
//! | hold it, and learn of its loss | [`Guard`] |
//! | see holders and waiters | [`Client`], [`status`] |
//! | choose the daemon | [`Endpoint`] |
//! | test a program that takes locks | `canal::testing::Daemon`, in the package `canal` |
//!
//! A lock belongs to the process that takes it, not to a thread: see [`Lock`]. All calls block, so
//! an async program must make them in a thread for blocking work.
//!
//! Modules that this documentation does not show belong to the program and may change at any time.

mod api;
#[doc(hidden)]
pub mod client;

pub use api::status;
pub use api::{
    Client, Endpoint, Error, ErrorKind, GrantedKey, Guard, Lock, Lost, LostReason, Mode, OnLost,
    SlotInfo, Updates,
};

/// Keeps the tests apart from the user's environment and processes.
#[cfg(test)]
#[path = "../../../tests/fixtures/isolation.rs"]
mod isolation;

/// Tests the examples of that page together with those of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
struct LibraryPage;
