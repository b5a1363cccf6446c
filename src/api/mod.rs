//! The library that other programs use: taking locks, watching them, and a daemon for tests.
//!
//! Everything that is public here is public API and is named at the root of the crate. The rest of
//! the crate is the program.
//!
//! Invariant: a [`Guard`] releases its own hold and no other, only once, and only in the process
//! that took it.

mod client;
mod endpoint;
mod error;
mod guard;
mod lock;
mod loss;
mod loss_monitor;
pub mod status;
pub mod testing;

pub use client::{Client, Updates};
pub use endpoint::Endpoint;
pub use error::{Error, ErrorKind};
pub use guard::Guard;
pub use lock::Lock;
pub use loss::{Lost, LostReason, OnLost};

pub use crate::protocol::{GrantedKey, Mode, SlotInfo};
