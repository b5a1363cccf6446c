//! Which keys are listed, and in which order.

use crate::cli::user_name;
use crate::protocol::KeyInfo;

/// What comes first in the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    /// The keys for which most wait.
    #[default]
    Waiters,
    /// The key for which something has waited longest.
    LongestWait,
    /// The key that was held longest.
    LongestHold,
    /// The names alone.
    Name,
}

/// What is listed, and how.
#[derive(Clone, Debug, Default)]
pub(super) struct Choice {
    pub(super) order: Order,
    /// Only keys with this in their name, or in a user or command of a holder or waiter.
    pub(super) filter: String,
}

/// A key of the list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    pub(super) key: &'a KeyInfo,
    /// Since when the oldest waiter waits.
    pub(super) waits_since: Option<&'a str>,
    /// Since when the oldest holder holds.
    pub(super) held_since: Option<&'a str>,
}

impl Order {
    /// As it is shown.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Waiters => "most waiters first",
            Self::LongestWait => "longest wait first",
            Self::LongestHold => "longest hold first",
            Self::Name => "by name",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Waiters => Self::LongestWait,
            Self::LongestWait => Self::LongestHold,
            Self::LongestHold => Self::Name,
            Self::Name => Self::Waiters,
        }
    }
}

impl Choice {
    pub(super) fn next_order(&mut self) {
        self.order = self.order.next();
    }

    /// The keys that are listed.
    pub(super) fn rows<'a>(&self, keys: &'a [KeyInfo]) -> Vec<Row<'a>> {
        let filter = self.filter.to_lowercase();
        let listed = keys.iter().filter(|key| filter.is_empty() || has(key, &filter));
        let mut rows: Vec<Row<'a>> = listed.map(Row::new).collect();
        // Times are RFC 3339 in UTC. Their order is that of their text.
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

/// Whether a text stands in the name of a key, or in what holds it or waits for it.
fn has(key: &KeyInfo, filter: &str) -> bool {
    let is_in = |text: &str| text.to_lowercase().contains(filter);
    let holders = key.holders.iter().map(|it| (it.uid, &it.command));
    let waiters = key.waiters.iter().map(|it| (it.uid, &it.command));
    is_in(&key.key)
        || holders.chain(waiters).any(|(uid, command)| {
            command.as_deref().is_some_and(is_in) || is_in(&user_name::name(uid))
        })
}
