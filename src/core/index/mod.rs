//! Indexes over holds and waiters: by key, by slot and by queue order.
//!
//! Invariant: every index can be computed from the holds, the waiters and the stored views. It
//! exists so that a decision need not look at all of them.

pub(in crate::core) mod bucket_use;
pub(in crate::core) mod grant_order;
pub(in crate::core) mod key_tree;
pub(in crate::core) mod lock;
pub(in crate::core) mod node;
pub(in crate::core) mod out_of_service;
pub(in crate::core) mod slot_pool;
