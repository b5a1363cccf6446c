//! What people are told: why a request was refused, and why it waits.

use crate::core::{Ask, Item, Key, Kind, Reason, Refusal, Request, View};
use crate::protocol::{ErrorName, Failure};

/// How full the lock is that a request did not get.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    /// Slots held by everyone.
    pub(super) held: u64,
    /// The view of those who state none.
    pub(super) view: Option<View>,
}

/// The failure that a refusal of the table becomes. `use_of` is that of the key of the item at
/// fault. Holders are added by the caller.
pub(super) fn refusal(why: &Refusal, request: &Request, use_of: Option<Use>) -> Failure {
    let item = item_of(why).and_then(|index| request.items.get(index));
    let Some(item) = item else {
        let message = match why {
            Refusal::Duplicate => "another request has this tag",
            _ => "the request makes no sense",
        };
        return Failure::new(ErrorName::BadRequest, message);
    };
    let key = &item.key;
    match why {
        Refusal::Full { .. } => refused("full", full(item, use_of)),
        Refusal::OwnDeadlock { .. } => own_deadlock(key),
        Refusal::Deadlock { .. } => {
            refused("deadlock", format!("waiting for `{key}` would be a deadlock"))
        }
        Refusal::Kind { in_use, .. } => wrong_kind(key, *in_use, stated_kind(item)),
        Refusal::Slots { lock, .. } => wrong_slots(item, *lock),
        Refusal::TooLarge { capacity: 0, .. } => {
            refused("full", format!("`{key}` admits nobody: the stated view has 0 buckets"))
        }
        Refusal::TooLarge { capacity, .. } => Failure::new(
            ErrorName::BadRequest,
            format!("{} of `{key}` can never fit into {capacity}", slots(count(item))),
        ),
        Refusal::Unsupported { .. } => Failure::new(
            ErrorName::Unsupported,
            format!("this version cannot grant what is asked of `{key}`"),
        ),
        Refusal::Invalid { .. } | Refusal::Duplicate => {
            Failure::new(ErrorName::BadRequest, format!("what is asked of `{key}` makes no sense"))
        }
    }
}

/// The failure of a request that is refused after it waited. `key` is that of the item at fault.
pub(super) fn late_refusal(why: &Refusal, key: Option<&Key>) -> Failure {
    match (why, key) {
        (Refusal::OwnDeadlock { .. }, Some(key)) => own_deadlock(key),
        (_, Some(key)) => refused("full", format!("`{key}` cannot be had any more")),
        (_, None) => refused("full", "what was asked for cannot be had any more".to_owned()),
    }
}

fn own_deadlock(key: &Key) -> Failure {
    refused(
        "deadlock",
        format!("`{key}` is held by this very session: waiting for it would never end"),
    )
}

/// The item at fault.
pub(super) fn item_of(why: &Refusal) -> Option<usize> {
    match why {
        Refusal::Full { item }
        | Refusal::OwnDeadlock { item }
        | Refusal::Kind { item, .. }
        | Refusal::Slots { item, .. }
        | Refusal::TooLarge { item, .. }
        | Refusal::Unsupported { item }
        | Refusal::Invalid { item } => Some(*item),
        Refusal::Deadlock { cycle } => cycle.first().map(|step| step.item),
        Refusal::Duplicate => None,
    }
}

/// The failure of a request whose time is over.
pub(super) fn timeout(key: &Key, reason: &str) -> Failure {
    refused("timeout", format!("the wait for `{key}` is over: {reason}"))
}

fn refused(reason: &str, message: String) -> Failure {
    let mut failure = Failure::new(ErrorName::Refused, message);
    failure.reason = Some(reason.to_owned());
    failure
}

fn full(item: &Item, use_of: Option<Use>) -> String {
    let key = &item.key;
    let Some(used) = use_of else { return format!("`{key}` is not free") };
    let capacity = stated_view(item).or(used.view).map(View::capacity);
    match capacity {
        Some(capacity) if used.held.saturating_add(count(item)) > capacity => {
            format!("`{key}` is full: {}", held(used.held, capacity))
        }
        _ => format!("others wait for `{key}`"),
    }
}

fn wrong_kind(key: &Key, in_use: Kind, stated: Option<Kind>) -> Failure {
    let kind = |kind| match kind {
        Kind::Canal => "`per` and `buckets`",
        Kind::Slots => "`slots`",
    };
    let message = match stated {
        Some(stated) => {
            format!("`{key}` is in use as a lock with {}, not with {}", kind(in_use), kind(stated))
        }
        None => format!("`{key}` is in use as a lock with {}, and none is stated", kind(in_use)),
    };
    let hint = match in_use {
        Kind::Canal => format!("state --per and --buckets for `{key}`, or use another key"),
        Kind::Slots => format!("state --slots for `{key}`, or use another key"),
    };
    Failure::new(ErrorName::Mismatch, message).hint(hint)
}

fn wrong_slots(item: &Item, lock: u64) -> Failure {
    let key = &item.key;
    let stated = stated_view(item).map_or(0, View::capacity);
    let message = format!("`{key}` has {}, not {stated}", slots(lock));
    let hint = format!("`canal resize {key} --slots {stated}` changes it for all");
    Failure::new(ErrorName::Mismatch, message).hint(hint)
}

/// Why a request waits, in one clause.
pub(super) fn reason(reason: &Reason) -> String {
    match reason {
        Reason::Full { held: n, capacity } => held(*n, *capacity),
        Reason::Conflict { holds: 1, .. } => "held in a way that conflicts".to_owned(),
        Reason::Conflict { holds, .. } => format!("held {holds} times in a way that conflicts"),
        Reason::Behind { barrier: false, .. } => "behind an earlier waiter".to_owned(),
        Reason::Behind { barrier: true, .. } => {
            "behind a waiter that was overtaken too often".to_owned()
        }
        Reason::Drained => "drained: the stored view has no slots".to_owned(),
        Reason::LargerThanLock { count, capacity } => {
            format!("larger than the lock: it wants {} of {capacity}", slots(*count))
        }
        Reason::Suspended => "its process is stopped".to_owned(),
        Reason::Detached => "the daemon started anew and it did not come back yet".to_owned(),
    }
}

fn held(held: u64, capacity: u64) -> String {
    let verb = if held == 1 { "is" } else { "are" };
    format!("{held} of {} {verb} held", slots(capacity))
}

fn slots(count: u64) -> String {
    if count == 1 { "1 slot".to_owned() } else { format!("{count} slots") }
}

/// How many slots an item wants.
pub(super) fn count(item: &Item) -> u64 {
    match item.ask {
        Ask::Counted { count, .. } => count,
        Ask::Read | Ask::Write => 0,
    }
}

/// The view that an item states.
pub(super) fn stated_view(item: &Item) -> Option<View> {
    match item.ask {
        Ask::Counted { view, .. } => view,
        Ask::Read | Ask::Write => None,
    }
}

fn stated_kind(item: &Item) -> Option<Kind> {
    stated_view(item).map(View::kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{Command, HostId, Owner, Tag, Wait};

    fn request(view: Option<View>) -> Request {
        Request {
            tag: Tag(1),
            host: HostId(0),
            owner: Owner::Lease(1),
            parent: None,
            uid: 1,
            command: Command::default(),
            items: vec![Item {
                key: Key::new("db").unwrap(),
                ask: Ask::Counted { count: 1, view },
            }],
            wait: Wait::No,
            priority: 0,
            provisional: false,
            children: false,
        }
    }

    #[test]
    fn full_names_the_slots_or_those_who_wait() {
        let asked = request(Some(View::Slots { slots: 2 }));
        let why = Refusal::Full { item: 0 };
        let failure = refusal(&why, &asked, Some(Use { held: 2, view: None }));
        assert_eq!(failure.message, "`db` is full: 2 of 2 slots are held");
        assert_eq!(failure.reason.as_deref(), Some("full"));
        let failure = refusal(&why, &asked, Some(Use { held: 1, view: None }));
        assert_eq!(failure.message, "others wait for `db`");
    }

    #[test]
    fn another_number_of_slots_names_both_and_the_command_that_changes_it() {
        let asked = request(Some(View::Slots { slots: 2 }));
        let failure = refusal(&Refusal::Slots { item: 0, lock: 3 }, &asked, None);
        assert_eq!(failure.name, ErrorName::Mismatch);
        assert_eq!(failure.message, "`db` has 3 slots, not 2");
        assert_eq!(failure.hint.as_deref(), Some("`canal resize db --slots 2` changes it for all"));
    }

    #[test]
    fn another_kind_says_which_is_in_use() {
        let asked = request(Some(View::Slots { slots: 2 }));
        let why = Refusal::Kind { item: 0, in_use: Kind::Canal };
        let failure = refusal(&why, &asked, None);
        assert_eq!(
            failure.message,
            "`db` is in use as a lock with `per` and `buckets`, not with `slots`"
        );
        assert!(failure.hint.is_some_and(|hint| hint.contains("--per and --buckets")));
    }

    #[test]
    fn one_slot_is_not_many() {
        assert_eq!(reason(&Reason::Full { held: 1, capacity: 1 }), "1 of 1 slot is held");
        assert_eq!(reason(&Reason::Full { held: 0, capacity: 2 }), "0 of 2 slots are held");
    }
}
