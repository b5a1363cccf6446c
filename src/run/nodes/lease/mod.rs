//! A lease over nodes in the hands of its holder: the handle, its secret, and the leases around a
//! request.

pub(super) mod enclosing;
pub(super) mod handle;
pub(super) mod secret;
