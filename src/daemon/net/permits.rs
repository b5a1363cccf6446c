//! What a caller shows before it reads connections, ends a call, or says what a call waits for.
//!
//! The types with these permissions lie in `server`, and only the module of each can make a value of it. A test
//! (`tests/surface_rooms.rs`) checks that each permission is given to one type.

/// Permission to read connections. Only a [`Batch`](crate::daemon::server::batch::Batch) has it.
pub(crate) trait MayRead {}

/// Permission to end a call or to say what it waits for. Only the
/// [dispatcher](crate::daemon::server::dispatch) has it.
pub(crate) trait MayDispatch {}

/// For tests, which may do both.
#[cfg(test)]
pub(crate) struct InATest;

#[cfg(test)]
impl MayRead for InATest {}

#[cfg(test)]
impl MayDispatch for InATest {}
