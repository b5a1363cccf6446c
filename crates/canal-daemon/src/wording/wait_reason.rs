//! Why a request waits, in words: the clause in progress messages and reports.

use crate::wording::failures::owner_words;
use canal_core::{Item, Key, Mode, Owner, Reason};
use canal_text::plural;

/// A hold that blocks a request, and the number of further ones, in one clause.
pub(crate) fn conflict(
    asked: &Key,
    held: (&Key, Mode),
    owner: &Owner,
    host: Option<&str>,
    holds: u64,
) -> String {
    let (key, mode) = held;
    let on = host.map(|host| format!(" on {host}")).unwrap_or_default();
    let others = match holds.saturating_sub(1) {
        0 => String::new(),
        others => format!(" and {}", plural(others, "other", "others")),
    };
    let by = format!("by {}{on}{others}", owner_words(owner));
    let key = match (key == asked, asked.covers(key)) {
        (true, _) => None,
        (false, true) => Some(format!("`{key}`, a key below it,")),
        (false, false) => Some(format!("`{key}`, a key above it,")),
    };
    match (key, mode) {
        (None, Mode::Counted) => format!("slots are held {by}"),
        (None, Mode::Read) => format!("held for reading {by}"),
        (None, Mode::Write) => format!("held for writing {by}"),
        (Some(key), Mode::Counted) => format!("slots of {key} are held {by}"),
        (Some(key), Mode::Read) => format!("{key} is held for reading {by}"),
        (Some(key), Mode::Write) => format!("{key} is held for writing {by}"),
    }
}

/// The clause for a paused key.
pub(crate) fn paused_clause(key: &Key) -> String {
    format!("paused; resume it with `canal resize {key} --resume`")
}

/// Why a request still waits although nothing blocks it.
pub(crate) const ABOUT_TO_BE_GRANTED: &str = "about to be granted";

/// Why a request waits, in one clause.
pub(crate) fn reason(reason: &Reason) -> String {
    let text = match reason {
        Reason::Full { held: n, capacity } => return held(*n, *capacity),
        Reason::Conflict { .. } => "a holder conflicts with it",
        Reason::Behind { barrier: false, .. } => "behind an earlier waiter",
        Reason::Behind { barrier: true, .. } => "behind a waiter that was overtaken too often",
        Reason::Paused => "paused",
        Reason::LargerThanLock { count, capacity } => {
            return format!("it asks for {}, but the size is {capacity}", slots(*count));
        }
        Reason::Suspended => "its process is stopped",
        Reason::Detached => "the daemon was restarted, and its client has not reconnected yet",
        Reason::Recovering => "the table is recovering because the engine may have lost entries",
    };
    text.to_owned()
}

/// How many slots of a size are held.
pub(super) fn held(held: u64, capacity: u64) -> String {
    if held > capacity {
        return format!("{held} slots held, but its size allows {capacity}");
    }
    format!("{held} of {capacity} slots held")
}

/// A number of slots.
pub(super) fn slots(count: u64) -> String {
    plural(count, "slot", "slots")
}

/// The number of slots that an item asks for.
pub(crate) fn count(item: &Item) -> u64 {
    item.ask.counted().map_or(0, |(count, _)| count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use canal_core::{LeaseId, ProcessId};

    #[test]
    fn a_conflict_with_a_lease_names_no_process() {
        let (key, owner) = (Key::new("a").unwrap(), Owner::Lease(LeaseId(1)));
        let said = conflict(&key, (&key, Mode::Write), &owner, None, 1);
        assert_eq!(said, "held for writing by a lease");
    }

    #[test]
    fn a_conflict_says_where_it_is_and_with_whom() {
        let key = |text| Key::new(text).unwrap();
        let owner = Owner::Process(ProcessId { pid: 812, started: 1, inode: 0 });
        let said =
            |held, mode, holds| conflict(&key("db/x"), (&key(held), mode), &owner, None, holds);
        let elsewhere = conflict(&key("a"), (&key("a"), Mode::Write), &owner, Some("beta"), 2);
        assert_eq!(elsewhere, "held for writing by pid 812 on beta and 1 other");
        assert_eq!(said("db/x", Mode::Write, 1), "held for writing by pid 812");
        assert_eq!(said("db/x", Mode::Read, 2), "held for reading by pid 812 and 1 other");
        assert_eq!(said("db/x", Mode::Counted, 21), "slots are held by pid 812 and 20 others");
        assert_eq!(
            said("db", Mode::Write, 1),
            "`db`, a key above it, is held for writing by pid 812"
        );
        assert_eq!(
            said("db/x/1", Mode::Read, 1),
            "`db/x/1`, a key below it, is held for reading by pid 812"
        );
        assert_eq!(
            said("db/x/1", Mode::Counted, 1),
            "slots of `db/x/1`, a key below it, are held by pid 812"
        );
    }

    #[test]
    fn held_slots_are_counted_out_of_all() {
        assert_eq!(reason(&Reason::Full { held: 1, capacity: 1 }), "1 of 1 slots held");
        assert_eq!(reason(&Reason::Full { held: 0, capacity: 2 }), "0 of 2 slots held");
    }
}
