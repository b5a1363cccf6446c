//! Indexes over holds and waiters: by key, by slot and by queue order.
//!
//! Invariant: every index can be computed from the holds, the waiters and the stored views. It
//! exists so that a decision need not look at all of them.

pub(crate) mod counted_lock;
pub(crate) mod grant_order;
pub(crate) mod key_tree;
pub(crate) mod slots_and_buckets;
