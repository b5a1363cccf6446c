//! Permissions that a caller needs to read connections, to end a call, or to set what a call waits
//! for.
//!
//! The types with these permissions are in `server`, and only the module of each type can create a
//! value of it. A test (`tests/surface/rooms.rs`) checks that each permission belongs to one type.

/// Permission to read connections. Only a [`Batch`](crate::daemon::server::batch::Batch) has it.
pub(crate) trait MayRead {}

/// Permission to end a call or to set what it waits for. Only the
/// [dispatcher](crate::daemon::server::dispatch) has it.
pub(crate) trait MayDispatch {}

/// Has both permissions, for tests.
#[cfg(test)]
pub(crate) struct InATest;

#[cfg(test)]
impl MayRead for InATest {}

#[cfg(test)]
impl MayDispatch for InATest {}
