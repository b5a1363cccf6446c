//! The library that other programs use to take and watch locks.
//!
//! Everything public here is public API and is re-exported at the root of the crate. The rest of
//! the crate belongs to the program.
//!
//! Invariant: a [`Guard`] releases only its own hold, only once, and only in the process that took
//! it.

mod client;
mod error;
mod guard;
mod lock;
mod loss;
pub mod status;

pub use client::{Client, Endpoint, Updates};
pub use error::{Error, ErrorKind};
pub use guard::Guard;
pub use lock::Lock;
pub use loss::{Lost, LostReason, OnLost};

pub use canal_protocol::{GrantedKey, Mode, SlotInfo};
