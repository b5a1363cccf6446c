//! Selects and sorts the keys of the list.

use crate::cli::user_name;
use crate::protocol::KeyInfo;

/// The keys that come first in the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    /// The keys with the most waiters.
    #[default]
    Waiters,
    /// The keys with the longest wait.
    LongestWait,
    /// The keys with the longest hold.
    LongestHold,
    /// Sorted by name only.
    Name,
}

/// The keys to list, and their order.
#[derive(Clone, Debug, Default)]
pub(super) struct Choice {
    pub(super) order: Order,
    /// Lists only keys with this text in their name, or in a user or command of a holder or waiter.
    pub(super) filter: String,
}

/// A key of the list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    pub(super) key: &'a KeyInfo,
    /// The start of the longest wait.
    pub(super) waits_since: Option<&'a str>,
    /// The start of the longest hold.
    pub(super) held_since: Option<&'a str>,
}

impl Order {
    /// All orders with their names for display.
    const ALL: [(Self, &str); 4] = [
        (Self::Waiters, "most waiters first"),
        (Self::LongestWait, "longest wait first"),
        (Self::LongestHold, "longest hold first"),
        (Self::Name, "by name"),
    ];

    /// The name of the order for display.
    pub(super) fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

impl Choice {
    pub(super) fn next_order(&mut self) {
        self.order = Order::ALL[(self.order as usize + 1) % Order::ALL.len()].0;
    }

    /// The keys of the list.
    pub(super) fn rows<'a>(&self, keys: &'a [KeyInfo]) -> Vec<Row<'a>> {
        let filter = self.filter.to_lowercase();
        let listed = keys.iter().filter(|key| filter.is_empty() || has(key, &filter));
        let mut rows: Vec<Row<'a>> = listed.map(Row::new).collect();
        // Times are RFC 3339 in UTC, so their text sorts like the times.
        let none_last = |since: Option<&'a str>| (since.is_none(), since);
        match self.order {
            Order::Waiters => rows.sort_by_key(|row| u64::MAX - row.key.waiting),
            Order::LongestWait => rows.sort_by_key(|row| none_last(row.waits_since)),
            Order::LongestHold => rows.sort_by_key(|row| none_last(row.held_since)),
            Order::Name => {}
        }
        rows
    }
}

impl<'a> Row<'a> {
    fn new(key: &'a KeyInfo) -> Self {
        let waits_since = key.waiters.iter().map(|waiter| waiter.since.as_str()).min();
        let held_since = key.holders.iter().map(|holder| holder.since.as_str()).min();
        Self { key, waits_since, held_since }
    }
}

/// Whether the name of a key, or one of its holders or waiters, contains a text.
fn has(key: &KeyInfo, filter: &str) -> bool {
    let is_in = |text: &str| text.to_lowercase().contains(filter);
    let holders = key.holders.iter().map(|it| (it.uid, &it.command));
    let waiters = key.waiters.iter().map(|it| (it.uid, &it.command));
    is_in(&key.key)
        || holders.chain(waiters).any(|(uid, command)| {
            command.as_deref().is_some_and(is_in) || is_in(&user_name::name(uid))
        })
}
