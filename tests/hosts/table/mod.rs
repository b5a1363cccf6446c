//! Locks, order and tokens that several hosts share.

mod shared_locks;
mod tokens;
