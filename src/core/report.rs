//! What status and messages tell of a table.

use super::{Key, Kind, RequestId, Token, View};

/// What is known of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyReport {
    /// The kind in use, else that of the stored view.
    pub kind: Option<Kind>,
    /// Slots held by everyone.
    pub held: u64,
    /// The lock's own number (slots kind), the stored view, or of the canal kind the largest view
    /// among holders and waiters.
    pub view: Option<View>,
    /// The stored view.
    pub stored: Option<View>,
    /// Its holds, oldest first.
    pub holders: Vec<Token>,
    /// Its waiters, in the order in which they are served.
    pub waiters: Vec<RequestId>,
}

/// What keeps a waiting request from being granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// The item that keeps it.
    pub item: usize,
    /// That item's key.
    pub key: Key,
    /// What.
    pub reason: Reason,
}

/// What keeps a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// So many slots are held of so many.
    Full {
        /// Slots held.
        held: u64,
        /// The capacity of its view.
        capacity: u64,
    },
    /// An earlier (or higher, or barrier) waiter goes first.
    Behind {
        /// Which.
        waiter: RequestId,
        /// Whether that one is a barrier.
        barrier: bool,
    },
    /// The stored view that it follows has no slots.
    Drained,
    /// It wants more slots at once than the stored view that it follows has.
    LargerThanLock {
        /// What it wants.
        count: u64,
        /// What the lock has.
        capacity: u64,
    },
    /// Its process is stopped.
    Suspended,
    /// Its daemon started anew and it did not come back yet.
    Detached,
}
