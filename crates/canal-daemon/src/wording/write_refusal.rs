//! Why a request was refused, in words: the failure that the client prints.

use crate::wording::failures::pid_of;
use crate::wording::wait_reason::{count, held, slots};
use canal_core::{Item, Key, Kind, Mode, NodeId, Refusal, Request, View};
use canal_protocol::{ErrorName, Failure, NodesRefusal};
use canal_text::plural;

/// The use of the lock that a request did not get.
#[derive(Debug)]
pub(crate) struct Use {
    /// The number of held slots and of all slots in service, by the size that applies to the item;
    /// `None` for a read or write item.
    pub slots: Option<(u64, u64)>,
    /// The stored size.
    pub stored: Option<View>,
    /// The conflict that blocks the request, apart from slots, in one clause.
    pub conflict: Option<String>,
}

/// The failure for a refusal by the table. The caller adds the holders and the ring of a deadlock.
pub(crate) fn refusal(why: &Refusal, request: &Request, use_of: Option<&Use>) -> Failure {
    let item = item_of(why).and_then(|index| request.items.get(index));
    let Some(item) = item else {
        let message = match why {
            Refusal::Duplicate => {
                "another request already has this tag, or another lease already has this handle"
            }
            _ => "the request is not valid",
        };
        return Failure::new(ErrorName::BadRequest, message);
    };
    let key = &item.key;
    match why {
        Refusal::Full { .. } => refused("full", full(item, use_of)),
        Refusal::OwnDeadlock { .. } => refused(
            "deadlock",
            format!(
                "deadlock: this session already holds `{key}`, so waiting for it would never end"
            ),
        ),
        Refusal::Deadlock { cycle } => deadlock(key, cycle.len(), cycle.len()),
        Refusal::Kind { in_use, .. } => {
            let is_slots = *in_use == Kind::Slots;
            let options = if is_slots { "--slots" } else { "--per and --buckets" };
            Failure::new(ErrorName::Mismatch, format!("`{key}` {}", used_as(*in_use)))
                .hint(format!("give {options} for `{key}`, or use another key"))
        }
        Refusal::MaxWaiting { waiting, .. } => refused(
            "max-waiting",
            format!(
                "`{key}` is not free, and {} already waiting (at most {} may wait)",
                plural(*waiting, "request is", "requests are"),
                request.max_waiting.unwrap_or(*waiting)
            ),
        ),
        Refusal::Paused { .. } => paused(key, format!("`{key}` is paused")),
        Refusal::TooLarge { capacity, .. } => too_large(item, *capacity, use_of),
        Refusal::RequireTooLarge { .. } => require_too_large(item),
        Refusal::OtherNodes { theirs, .. } => other_nodes(item, theirs, request),
        Refusal::Invalid { .. }
        | Refusal::Duplicate
        | Refusal::Superseded { .. }
        | Refusal::CannotEnd { .. }
        | Refusal::Recovering => {
            Failure::new(ErrorName::BadRequest, format!("the request for `{key}` is not valid"))
        }
    }
}

/// The failure for an item for which more than half of the nodes would not be enough to exclude
/// others.
fn require_too_large(item: &Item) -> Failure {
    let key = &item.key;
    let message = match item.ask.mode() {
        Mode::Write => format!(
            "a majority of the nodes cannot keep jobs on the other nodes out of `{key}` while it \
             is held for writing"
        ),
        Mode::Read | Mode::Counted => format!(
            "`{key}` has more than one slot, so a majority of the nodes would not keep others out"
        ),
    };
    Failure::new(ErrorName::RequireTooLarge, message).hint("use all nodes: `--require all`")
}

/// The failure for a request over a list of nodes that differs from that of a request that holds or
/// waits.
fn other_nodes(item: &Item, theirs: &[NodeId], request: &Request) -> Failure {
    let yours = request.over_nodes.as_deref().map_or(&[][..], |over| &over.nodes);
    let key = &item.key;
    let message = format!(
        "`{key}` is in use on another list of nodes, and the nodes needed from the two lists \
         might not overlap: {} and {}",
        list_of(theirs),
        list_of(yours)
    );
    let (key, theirs, yours) = (key.to_string(), theirs.to_vec(), yours.to_vec());
    let nodes = Some(Box::new(NodesRefusal::Lists { key, theirs, yours }));
    Failure { nodes, ..Failure::new(ErrorName::NodeListDiffers, message) }
        .hint("name the same nodes everywhere; add new nodes first, and remove old ones later")
}

/// The beginnings of the ids of some nodes, for people to compare.
fn list_of(nodes: &[NodeId]) -> String {
    let ids: Vec<String> = nodes.iter().map(|node| node.to_string()[..8].to_owned()).collect();
    format!("({})", ids.join(", "))
}

/// The failure for a request that was refused to end a deadlock. The message counts the sessions,
/// or the processes if all are of one session.
pub(crate) fn deadlock(key: &Key, sessions: usize, processes: usize) -> Failure {
    let among = match sessions {
        1 => format!("{processes} processes of one session"),
        _ => format!("{sessions} sessions"),
    };
    refused("deadlock", format!("deadlock on `{key}`: {among} would wait for each other forever"))
}

/// The failure for a request that a newer one supersedes: the newer one, if it is still known, with
/// its command, if the client may see it.
pub(crate) fn superseded_by(by: Option<&Request>, command: Option<&str>) -> Failure {
    let by = match (by.map(|by| pid_of(&by.owner)), command) {
        (None, _) => "a newer request".to_owned(),
        (Some(0), Some(command)) => format!("a lease requested by `{}`", shortened(command)),
        (Some(0), None) => "a lease".to_owned(),
        (Some(pid), Some(command)) => format!("pid {pid} `{}`", shortened(command)),
        (Some(pid), None) => format!("pid {pid}"),
    };
    refused("superseded", format!("superseded by {by}"))
}

/// A command line, cut if it is long.
fn shortened(command: &str) -> String {
    const CHARS_MAX: usize = 60;
    match command.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}…", &command[..end]),
        None => command.to_owned(),
    }
}

/// The item at fault.
pub(crate) fn item_of(why: &Refusal) -> Option<usize> {
    match why {
        Refusal::Full { item }
        | Refusal::OwnDeadlock { item }
        | Refusal::Kind { item, .. }
        | Refusal::Paused { item }
        | Refusal::MaxWaiting { item, .. }
        | Refusal::TooLarge { item, .. }
        | Refusal::RequireTooLarge { item }
        | Refusal::OtherNodes { item, .. }
        | Refusal::Invalid { item } => Some(*item),
        Refusal::Deadlock { cycle } => cycle.first().map(|step| step.item),
        Refusal::Duplicate
        | Refusal::Superseded { .. }
        | Refusal::CannotEnd { .. }
        | Refusal::Recovering => None,
    }
}

/// The failure for a request whose wait has timed out. `reason` is the cause of the wait.
pub(crate) fn timeout(key: &str, reason: &str) -> Failure {
    refused("timeout", format!("the wait for `{key}` timed out: {reason}"))
}

/// The failure for a request whose wait has timed out while one of its keys is paused.
pub(crate) fn timeout_while_paused(key: &Key) -> Failure {
    paused(key, format!("the wait for `{key}` timed out: it is paused"))
}

fn paused(key: &Key, message: String) -> Failure {
    refused("paused", message).hint(format!("resume it with `canal resize {key} --resume`"))
}

/// The failure for a request for more slots than the lock has.
fn too_large(item: &Item, capacity: u64, use_of: Option<&Use>) -> Failure {
    let (key, wanted, stored) = (&item.key, count(item), use_of.and_then(|used| used.stored));
    let view = stored.or(item.ask.stated());
    let is_reduced = view.unwrap_or(View::ONE).capacity() > capacity;
    let with = format!("return slot or bucket N to service with `canal resize {key} --with N`");
    if capacity == 0 && is_reduced {
        let message = format!("`{key}` cannot be granted: all its slots are out of service");
        return refused("full", message).hint(with);
    }
    if capacity == 0 {
        let which = if stored.is_some() { "stored" } else { "given" };
        let message = format!("`{key}` cannot be granted: its {which} size has 0 buckets");
        return refused("full", message);
    }
    let size = match view {
        Some(View::Buckets { per, .. }) => {
            format!("--per {per} --buckets {}", wanted.div_ceil(per.max(1)))
        }
        Some(View::Slots { .. }) | None => format!("--slots {wanted}"),
    };
    let more = format!("give {size} or more");
    let (bound, hint) = match (stored, view) {
        _ if is_reduced => {
            (format!("only {} in service", plural(capacity, "slot is", "slots are")), with)
        }
        (Some(stored), _) => (
            format!("its stored size is {stored}"),
            format!("make room with `canal resize {key} {size}`"),
        ),
        (None, Some(view)) => (format!("the given size is {view}"), more),
        (None, None) => (format!("no size is given, so it has {}", slots(capacity)), more),
    };
    let message = format!("{} of `{key}` can never be granted: {bound}", slots(wanted));
    Failure::new(ErrorName::BadRequest, message).hint(hint)
}

/// The hint about a count in the text of `--key`: `host:5432` rarely means 5432 slots.
pub(crate) fn count_in_text(text: &str) -> String {
    format!(
        "use --key-literal if `{text}` is the key, because `:` starts a count; to take that many \
         slots, give a large enough size with --slots"
    )
}

/// The failure for a request that was not granted.
pub(crate) fn refused(reason: &str, message: impl Into<String>) -> Failure {
    Failure::new(ErrorName::Refused, message).because(reason)
}

fn full(item: &Item, use_of: Option<&Use>) -> String {
    let key = &item.key;
    let Some(used) = use_of else { return format!("`{key}` is not free") };
    match (used.slots, &used.conflict) {
        (Some((n, capacity)), _) if n.saturating_add(count(item)) > capacity => {
            format!("`{key}` is full: {}", held(n, capacity))
        }
        (_, Some(conflict)) => format!("`{key}` is not free: {conflict}"),
        (_, None) => format!("other requests are waiting for `{key}`"),
    }
}

/// The end of a sentence about a key that is in use as the other kind of lock.
pub(crate) fn used_as(in_use: Kind) -> &'static str {
    match in_use {
        Kind::Buckets => "is in use as a lock with `per` and `buckets`, not with `slots`",
        Kind::Slots => "is in use as a lock with `slots`, not with `per` and `buckets`",
    }
}

/// The failure for a call whose request was made again on another connection.
pub(crate) fn superseded(name: ErrorName) -> Failure {
    Failure::new(name, "another connection made the same request")
}

/// The failure for a client that would have to wait while too many requests of its user wait.
pub(crate) fn too_many_wait(most: usize, uid: u32) -> Failure {
    let message = format!("uid {uid} already has {most} waiting requests");
    tracing::warn!("{message}; refusing more");
    Failure::new(ErrorName::TooManyWaiters, message)
        .hint("raise `waiters_per_user` in the configuration")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::plain_request;
    use canal_core::{
        Ask, By, FrameId, HostId, LeaseId, Owner, ProcessId, RequestId, Tag, Token, WaitFor,
    };

    fn request(view: Option<View>) -> Request {
        let items = vec![Item { key: Key::new("db").unwrap(), ask: Ask::slots(1, view) }];
        plain_request(Tag(1), HostId(0), (Owner::Lease(LeaseId(1)), 1), items)
    }

    fn use_of(held: u64, conflict: Option<&str>) -> Use {
        Use { slots: Some((held, 2)), stored: None, conflict: conflict.map(str::to_owned) }
    }

    #[test]
    fn a_deadlock_is_counted_in_sessions() {
        let step = WaitFor {
            request: RequestId(1),
            frame: FrameId(1),
            item: 0,
            key: Key::new("db").unwrap(),
            by: By::Hold(Token(1), FrameId(2)),
        };
        let why = Refusal::Deadlock { cycle: vec![step; 3] };
        let words = "deadlock on `db`: 3 sessions would wait for each other forever";
        let failure = refusal(&why, &request(None), None);
        assert_eq!(
            (failure.message.as_str(), failure.reason.as_deref()),
            (words, Some("deadlock"))
        );
    }

    #[test]
    fn a_full_key_names_its_slots_or_the_waiters_ahead() {
        let asked = request(Some(View::Slots { slots: 2 }));
        let why = Refusal::Full { item: 0 };
        let failure = refusal(&why, &asked, Some(&use_of(2, None)));
        assert_eq!(failure.message, "`db` is full: 2 of 2 slots held");
        assert_eq!(failure.reason.as_deref(), Some("full"));
        let failure = refusal(&why, &asked, Some(&use_of(1, None)));
        assert_eq!(failure.message, "other requests are waiting for `db`");
        let failure = refusal(&why, &asked, Some(&use_of(1, Some("held for writing by pid 5"))));
        assert_eq!(failure.message, "`db` is not free: held for writing by pid 5");
    }

    #[test]
    fn a_count_above_the_size_names_the_size_and_the_command_that_helps() {
        let of = |stated, stored| {
            let mut asked = request(stated);
            asked.items[0].ask = Ask::slots(4, stated);
            let used = Use { stored, ..use_of(0, None) };
            let why = Refusal::TooLarge { item: 0, capacity: 2 };
            let failure = refusal(&why, &asked, Some(&used));
            assert_eq!(failure.name, ErrorName::BadRequest);
            (failure.message, String::from(failure.hint.unwrap()))
        };
        let two = Some(View::Slots { slots: 2 });
        let buckets = Some(View::Buckets { per: 2, buckets: 1 });
        let never = |bound: &str| format!("4 slots of `db` can never be granted: {bound}");
        let more = |size: &str| format!("give {size} or more");
        assert_eq!(
            of(None, None),
            (never("no size is given, so it has 2 slots"), more("--slots 4"))
        );
        assert_eq!(of(two, None), (never("the given size is 2"), more("--slots 4")));
        assert_eq!(
            of(buckets, None),
            (never("the given size is 2x1"), more("--per 2 --buckets 2"))
        );
        let hint = "make room with `canal resize db --slots 4`".to_owned();
        assert_eq!(of(None, two), (never("its stored size is 2"), hint));
    }

    #[test]
    fn slots_out_of_service_are_named_with_the_command_that_returns_them() {
        let of = |capacity| {
            let mut asked = request(None);
            asked.items[0].ask = Ask::slots(3, Some(View::Slots { slots: 4 }));
            let failure = refusal(&Refusal::TooLarge { item: 0, capacity }, &asked, None);
            assert!(failure.hint.is_some_and(|hint| hint.contains("`canal resize db --with N`")));
            (failure.message, failure.name)
        };
        let none = "`db` cannot be granted: all its slots are out of service".to_owned();
        assert_eq!(of(0), (none, ErrorName::Refused));
        let few = "3 slots of `db` can never be granted: only 2 slots are in service".to_owned();
        assert_eq!(of(2), (few, ErrorName::BadRequest));
    }

    #[test]
    fn a_superseded_request_names_the_newer_one() {
        let owner = Owner::Process(ProcessId { pid: 812, started: 1, inode: 0 });
        let job = Request { owner, ..request(None) };
        let by = |command: Option<&str>| superseded_by(Some(&job), command).message;
        assert_eq!(by(Some("make all")), "superseded by pid 812 `make all`");
        assert_eq!(by(None), "superseded by pid 812");
        assert!(by(Some(&"ä".repeat(99))).ends_with("ä…`"));
        let message = superseded_by(Some(&request(None)), Some("deploy")).message;
        assert_eq!(message, "superseded by a lease requested by `deploy`");
        let failure = superseded_by(None, None);
        assert_eq!(failure.message, "superseded by a newer request");
        assert_eq!(failure.reason.as_deref(), Some("superseded"));
    }

    #[test]
    fn a_view_without_buckets_is_full() {
        let asked = request(Some(View::Buckets { per: 3, buckets: 0 }));
        let failure = refusal(&Refusal::TooLarge { item: 0, capacity: 0 }, &asked, None);
        assert_eq!(failure.message, "`db` cannot be granted: its given size has 0 buckets");
        assert_eq!(failure.reason.as_deref(), Some("full"));
    }

    #[test]
    fn max_waiting_says_how_many_wait() {
        let asked = Request { max_waiting: Some(1), ..request(None) };
        let failure = refusal(&Refusal::MaxWaiting { item: 0, waiting: 1 }, &asked, None);
        assert_eq!(
            failure.message,
            "`db` is not free, and 1 request is already waiting (at most 1 may wait)"
        );
        assert_eq!(failure.reason.as_deref(), Some("max-waiting"));
        let failure = refusal(&Refusal::MaxWaiting { item: 0, waiting: 3 }, &asked, None);
        assert_eq!(
            failure.message,
            "`db` is not free, and 3 requests are already waiting (at most 1 may wait)"
        );
    }

    #[test]
    fn a_paused_key_is_named_with_the_command_that_resumes_it() {
        let failure = refusal(&Refusal::Paused { item: 0 }, &request(None), None);
        assert_eq!(failure.message, "`db` is paused");
        assert_eq!(failure.reason.as_deref(), Some("paused"));
        assert_eq!(failure.hint.as_deref(), Some("resume it with `canal resize db --resume`"));
    }

    #[test]
    fn another_kind_says_which_is_in_use() {
        let asked = request(Some(View::Slots { slots: 2 }));
        let why = Refusal::Kind { item: 0, in_use: Kind::Buckets };
        let failure = refusal(&why, &asked, None);
        assert_eq!(
            failure.message,
            "`db` is in use as a lock with `per` and `buckets`, not with `slots`"
        );
        assert!(failure.hint.is_some_and(|hint| hint.contains("--per and --buckets")));
    }
}
