//! Indexes over holds and waiters: by key, by slot, by order of service.
//!
//! Invariant: an index holds nothing that could not be computed again from the holds, the waiters
//! and the stored views. It exists so that a decision does not look at all of them.

pub(in crate::core) mod grant_order;
pub(in crate::core) mod key_tree;
pub(in crate::core) mod lock;
pub(in crate::core) mod node;
pub(in crate::core) mod slot_pool;
