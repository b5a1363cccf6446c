//! A lease over nodes in the hands of its holder: the handle, its secret, and the leases around a
//! request.

mod enclosing;
mod handle;
mod secret;

pub use enclosing::EnclosingLeases;
pub use handle::{HandleTooLong, HeldPart, LEASE_HANDLE_CHARS_MAX, LeaseHandle, LeaseHandleError};
pub use secret::Secret;
