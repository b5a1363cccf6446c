//! The plain values of the table: keys, ids, requests, entries and outcomes.
//!
//! Invariant: nothing here knows the table. Every value can be made, read and written without one.

mod entry;
mod id;
mod key;
mod key_settings;
mod lease;
mod outcome;
mod request;
mod sizes_and_slots;
mod snapshot;

pub use entry::*;
pub use id::*;
pub use key::*;
pub use key_settings::*;
pub use lease::*;
pub use outcome::*;
pub use request::*;
pub use sizes_and_slots::*;
pub use snapshot::*;
