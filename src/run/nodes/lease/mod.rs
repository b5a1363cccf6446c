//! A lease over nodes as its holder knows it: the handle, its secret, and the leases around a request.

pub(super) mod enclosing;
pub(super) mod handle;
pub(super) mod secret;
