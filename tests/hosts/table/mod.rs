//! What several hosts share: locks, order and tokens.

mod shared_locks;
mod tokens;
