//! Checks the decisions of a table.

use std::collections::{BTreeMap, BTreeSet};

use super::admission::{
    Never, admissible, applied, chosen, conflict, free, is_paused, never, own_deadlock, passed,
    precedes, takes_part,
};
use super::deadlock::{deadlocked, forget, ids, in_the_way, is_on_a_cycle, waiting_in_vain};
use super::supersede::check_superseded;
use super::{Asker, lineage, root};
use crate::*;

/// Checks one step of a table: each outcome is right when it is decided, no request waits that
/// could be granted, no slot is held twice, and replay and restore give the identical table.
pub(in crate::tests) fn check_step(
    before: &Table,
    entry: &Entry,
    outcomes: &[Outcome],
    after: &Table,
) {
    check_superseded(before, entry, outcomes);
    let replay = check_decisions(before, entry, outcomes);
    let state = after.snapshot();
    assert_eq!(replay.snapshot(), state, "replay differs");
    assert_eq!(Table::restore(&state).unwrap().snapshot(), state, "restore differs");
    check_last_words(entry, outcomes, after);
    check_first_ahead(&state, after);
    check_sizes(&before_newcomer(before, entry, outcomes), entry, &state);
    check_state(&state);
    for waiter in &state.waiters {
        assert_eq!(after.is_inactive(waiter), !takes_part(&state, waiter), "{}", brief(&state));
    }
    check_over_nodes(&state, after);
}

/// Checks that requests over nodes that exclude each other share a node, and that no unconfirmed
/// spare keeps a request waiting.
fn check_over_nodes(state: &Snapshot, after: &Table) {
    let waiting = state.waiters.iter().map(|waiter| (waiter.id, &waiter.request));
    let holding = state.holds.iter().map(|hold| (hold.request, &hold.asked));
    let over: Vec<_> = waiting
        .chain(holding)
        .filter_map(|(id, asked)| Some((id, asked, asked.over_nodes.as_deref()?)))
        .collect();
    assert!(over.iter().map(|(id, ..)| *id).collect::<BTreeSet<_>>() == after.over_nodes);
    for (id, asked, list) in &over {
        for (other, theirs, their_list) in over.iter().filter(|(other, ..)| other != id) {
            let rivals = asked.items.iter().any(|one| {
                theirs.items.iter().any(|two| {
                    let near = one.key.covers(&two.key) || two.key.covers(&one.key);
                    let slots = (Mode::Counted, Mode::Counted) == (one.ask.mode(), two.ask.mode());
                    let writes = [one, two].iter().any(|item| item.ask == Ask::Write);
                    near && writes || slots && one.key == two.key
                })
            });
            let any = [list, their_list].iter().any(|list| list.require == Require::Any);
            assert!(!rivals || any || list.always_meets(their_list), "{id} {other}");
        }
    }
    let is_spare = |hold: &&HoldState| {
        hold.provisional && hold.asked.over_nodes.as_ref().is_some_and(|over| over.spare)
    };
    let spares: Vec<Token> = state.holds.iter().filter(is_spare).map(|hold| hold.token).collect();
    if state.globals.recovery.is_some() {
        return;
    }
    let mut without = after.clone();
    for token in spares {
        let change = Change::Release(Release::Hold { token, forced: false });
        let entry = Entry { version: ENTRY_VERSION, at: UnixMillis(0), change };
        let mut outcomes = Vec::new();
        without.apply(Revision(without.revision().0 + 1), &entry, &mut outcomes);
        let granted = outcomes.iter().any(|it| matches!(it, Outcome::Granted(_)));
        assert!(!granted, "spare {token} keeps a request waiting: {}", brief(state));
    }
}

/// The state in which a new request was decided: after the spares that blocked it were taken back.
fn before_newcomer(before: &Table, entry: &Entry, outcomes: &[Outcome]) -> Snapshot {
    let mut replay = before.clone();
    replay.globals.revision = Revision(before.revision().0 + 1);
    let newcomer = RequestId(replay.globals.revision.0);
    let is_new = matches!(entry.change, Change::Request(_));
    for outcome in outcomes.iter().take_while(|outcome| is_new && !outcome.is_word_on(newcomer)) {
        replay.carry_out(entry, outcome).unwrap();
    }
    replay.snapshot()
}

/// Checks each outcome, and returns the resulting table.
pub(in crate::tests) fn check_decisions(
    before: &Table,
    entry: &Entry,
    outcomes: &[Outcome],
) -> Table {
    let mut replay = before.clone();
    replay.globals.revision = Revision(before.revision().0 + 1);
    let mut counts = bypasses(before);
    replay.mark(entry);
    for outcome in outcomes {
        for request in check_outcome(&replay, entry, outcome) {
            assert!(!replay.waiter(request).unwrap().barrier, "{request} is passed as a barrier");
            *counts.entry(request).or_default() += 1;
        }
        replay.carry_out(entry, outcome).unwrap();
        for (request, count) in bypasses(&replay) {
            let expected = counts.get(&request).copied().unwrap_or(0);
            assert_eq!(count, expected, "{request} {outcome:?} {}", brief(&replay.snapshot()));
        }
    }
    replay
}

/// How many times each request was overtaken, whether it waits or was granted.
fn bypasses(table: &Table) -> BTreeMap<RequestId, u32> {
    let waiting = table.waiters().map(|waiter| (waiter.id, waiter.passed));
    waiting.chain(table.holds().map(|hold| (hold.request, hold.passed))).collect()
}

/// The cheap part of the check: no request loses its count of grants that overtook it, and each
/// grant adds at most one.
pub(in crate::tests) fn check_bypasses(before: &Table, outcomes: &[Outcome], after: &Table) {
    let grants = outcomes.iter().filter(|it| matches!(it, Outcome::Granted(_))).count() as u32;
    let (before, after) = (bypasses(before), bypasses(after));
    for (request, count) in &after {
        let was = before.get(request).copied().unwrap_or(0);
        assert!((was..=was + grants).contains(count), "{request}: {was}, then {count}");
    }
}

/// Checks that a request keeps the sizes that it was given when it was applied. A hold states to
/// others what its request states, unless it shares slots. Then it has the view of their holder,
/// and once it inherits the slots, it states what that holder stated.
fn check_sizes(before: &Snapshot, entry: &Entry, after: &Snapshot) {
    if let Change::Request(asked) = &entry.change {
        let (id, items) = (RequestId(after.globals.revision.0), applied(before, asked).items);
        let waiting = after.waiters.iter().map(|waiter| (waiter.id, &waiter.request));
        let holding = after.holds.iter().map(|hold| (hold.request, &hold.asked));
        for (_, stored) in waiting.chain(holding).filter(|(request, _)| *request == id) {
            assert_eq!(stored.items, items, "{}", brief(before));
        }
    }
    for hold in &after.holds {
        for item in hold.items.iter().filter(|item| item.mode == Mode::Counted) {
            let was = before.holds.iter().filter(|was| was.request == hold.request);
            let was = was.flat_map(|was| &was.items).find(|was| was.key == item.key);
            let size = (item.view, item.stated);
            let expected = match was {
                Some(was) if was.shared && !item.shared => {
                    let base = holder_of(before, item).expect("somebody held these slots");
                    (base.view, base.stated)
                }
                Some(was) => (was.view, was.stated),
                None if item.shared => (holder_of(after, item).expect("as above").view, None),
                None => {
                    let asked = hold.asked.items.iter().find(|asked| asked.key == item.key);
                    (item.view, asked.and_then(|asked| asked.ask.stated()))
                }
            };
            assert_eq!(size, expected, "{item:?} {}", brief(after));
        }
    }
}

/// The item that owns the slots that another item shares: both begin with the same slot.
fn holder_of<'a>(state: &'a Snapshot, sharer: &HeldItem) -> Option<&'a HeldItem> {
    let first = |item: &HeldItem| item.slots.0.first().map(|range| range.0);
    let mut items = state.holds.iter().flat_map(|hold| &hold.items);
    items.find(|item| item.key == sharer.key && !item.shared && first(item) == first(sharer))
}

/// Checks that a waiter whose items are free reports its first predecessor.
fn check_first_ahead(state: &Snapshot, table: &Table) {
    for waiter in state.waiters.iter().filter(|waiter| takes_part(state, waiter)) {
        let asker = Asker::waiting(waiter);
        let predecessors = state.waiters.iter().filter(|other| precedes(state, other, &asker));
        let order = |other: &&WaiterState| {
            (!other.barrier, if other.barrier { 0 } else { -other.request.priority }, other.id)
        };
        let first = predecessors.min_by_key(order).map(|other| other.id);
        let expected = first.filter(|_| free(state, &asker));
        assert_eq!(table.first_ahead(waiter.id).is_some(), expected.is_some(), "{}", brief(state));
        if let Some(found) = table.first_ahead(waiter.id) {
            let found = state.waiters.iter().find(|other| other.id == found).unwrap();
            assert!(precedes(state, found, &asker), "{} {}", waiter.id, brief(state));
        }
    }
}

/// Checks that the last outcome about a request gives its final state, and that the requester gets
/// one.
fn check_last_words(entry: &Entry, outcomes: &[Outcome], after: &Table) {
    let asker = matches!(entry.change, Change::Request(_)).then_some(RequestId(after.revision().0));
    let named = (1..=after.revision().0).map(RequestId);
    for request in named {
        let words: Vec<&Outcome> = outcomes.iter().filter(|it| it.is_word_on(request)).collect();
        let (waits, holds) = (after.waiter(request).is_some(), after.hold_of(request).is_some());
        let expected = match words.last() {
            Some(Outcome::Queued { .. } | Outcome::Requeued { .. }) => (true, false),
            Some(Outcome::Granted(_)) => (false, true),
            Some(_) => (false, false),
            None => {
                assert_ne!(asker, Some(request), "the asker hears nothing: {outcomes:?}");
                continue;
            }
        };
        assert_eq!((waits, holds), expected, "{words:?} of {outcomes:?}");
        let decided = words.iter().filter(|word| !matches!(word, Outcome::Queued { .. }));
        assert!(decided.count() <= 1, "{words:?}");
        let queued = words.iter().skip(1).any(|word| matches!(word, Outcome::Queued { .. }));
        assert!(!queued, "{words:?}");
    }
}

/// Checks an outcome, and returns the waiters that it overtakes.
fn check_outcome(table: &Table, entry: &Entry, outcome: &Outcome) -> BTreeSet<RequestId> {
    let state = table.snapshot();
    let newcomer = match &entry.change {
        Change::Request(asked) => Some(applied(&state, asked)),
        _ => None,
    };
    let asker = |id: RequestId, frame: FrameId| match &newcomer {
        Some(asked) if id.0 == table.revision().0 => {
            Asker { id, frame, parent: asked.parent, asked, barrier: false }
        }
        _ => panic!("{outcome:?} of a request that is unknown"),
    };
    let new = |id: RequestId| {
        let asked = newcomer.as_ref().expect("only newcomers are decided so");
        let frame = table.frame_of(asked.host, &asked.owner).unwrap_or(FrameId(id.0));
        asker(id, frame)
    };
    let waiting = |id: RequestId| state.waiters.iter().find(|waiter| waiter.id == id);
    match outcome {
        Outcome::Granted(granted) => {
            let asker = match waiting(granted.request) {
                Some(waiter) => Asker::waiting(waiter),
                None => asker(granted.request, granted.frame),
            };
            let admission = admissible(&state, &asker);
            assert!(
                admission == Some(granted.bypassed_blockers),
                "{granted:?} of {:?}: {admission:?} {}",
                asker.asked,
                brief(&state)
            );
            for (item, given) in asker.asked.items.iter().zip(&granted.items) {
                let chosen = chosen(&state, item);
                assert!(
                    given.shared || given.slots.iter().eq(chosen.iter().copied()),
                    "{}",
                    brief(&state)
                );
            }
            assert!(granted.token >= state.globals.next_token);
            assert_eq!(state.globals.recovery, None, "a grant in a recovery");
            return passed(&state, &asker);
        }
        Outcome::Queued { request, .. } => {
            let asker = new(*request);
            let never = never(&state, &asker);
            assert_ne!(asker.asked.wait, Wait::No);
            let most = asker.asked.max_waiting.unwrap_or(u64::MAX);
            assert!(most_waiting(&state, asker.asked) < most, "{}", brief(&state));
            assert!(matches!(never, None | Some(Never::Paused)), "{never:?} {}", brief(&state));
            assert!(!own_deadlock(&state, &asker), "{}", brief(&state));
            assert!(admissible(&state, &asker).is_none(), "{}", brief(&state));
        }
        Outcome::Refused { request, why: Refusal::Full { .. } } => {
            let asker = new(*request);
            assert_eq!((asker.asked.wait, never(&state, &asker)), (Wait::No, None));
            assert!(admissible(&state, &asker).is_none(), "{}", brief(&state));
        }
        Outcome::Refused { request, why: Refusal::Paused { .. } } => {
            let asker = new(*request);
            let never = never(&state, &asker);
            assert_eq!((asker.asked.wait, never), (Wait::No, Some(Never::Paused)));
        }
        Outcome::Refused { request, why: Refusal::MaxWaiting { waiting, .. } } => {
            let asker = new(*request);
            assert_ne!(asker.asked.wait, Wait::No);
            assert_eq!(most_waiting(&state, asker.asked), *waiting);
            assert!(asker.asked.max_waiting.is_some_and(|most| *waiting >= most));
            assert!(!own_deadlock(&state, &asker), "{}", brief(&state));
            assert!(admissible(&state, &asker).is_none(), "{}", brief(&state));
        }
        Outcome::Refused { request, why: Refusal::TooLarge { capacity, .. } } => {
            let asker = match waiting(*request) {
                // It arrived while one of its keys was paused, and this entry resumes that key.
                Some(waiter) => {
                    let resumes =
                        matches!(entry.change, Change::Set { setting: Setting::Paused(false), .. });
                    assert!(resumes && !waiter.size_unchecked, "{}", brief(&state));
                    Asker::waiting(waiter)
                }
                None => new(*request),
            };
            let expected = if *capacity == 0 { Never::Empty } else { Never::TooLarge };
            assert_eq!(never(&state, &asker), Some(expected), "{}", brief(&state));
        }
        Outcome::Refused { request, why: Refusal::Deadlock { cycle } } => {
            check_victim(&state, *request, cycle);
        }
        Outcome::Refused { request, why: Refusal::OwnDeadlock { .. } } => {
            let asker = match waiting(*request) {
                Some(waiter) => Asker::waiting(waiter),
                None => new(*request),
            };
            assert!(own_deadlock(&state, &asker), "{}", brief(&state));
        }
        Outcome::Prioritized { request, before } => {
            assert_eq!(waiting(*request).unwrap().request.priority, *before);
        }
        Outcome::Barrier { request } => {
            assert!(
                waiting(*request).unwrap().passed >= state.globals.bypass_max,
                "{}",
                brief(&state)
            );
        }
        _ => {}
    }
    BTreeSet::new()
}

/// Checks the choice of a victim. Candidates are the requests on a cycle whose refusal lets another
/// request on a cycle proceed, or, if there are none, all requests on a cycle. The victim is the
/// latest request of the youngest session among them.
fn check_victim(state: &Snapshot, victim: RequestId, cycle: &[WaitFor]) {
    let stuck = deadlocked(state);
    let vain = waiting_in_vain(state);
    assert!(ids(&stuck).is_subset(&vain), "{:?} of {vain:?} {}", ids(&stuck), brief(state));
    assert!(ids(&stuck).contains(&victim), "{victim} is in no deadlock: {}", brief(state));
    check_cycle(&stuck, victim, cycle);
    let helps = |waiter: &&WaiterState| {
        let without = forget(&stuck, |_, other| other.id == waiter.id).unwrap();
        let left = ids(&deadlocked(&without));
        let gone = |other: &WaiterState| other.id != waiter.id && !left.contains(&other.id);
        stuck.waiters.iter().any(|other| gone(other) && is_on_a_cycle(&stuck, other))
    };
    let on_a_cycle = |waiter: &&WaiterState| is_on_a_cycle(&stuck, waiter);
    let age = |waiter: &WaiterState| (root(state, waiter.frame), waiter.id);
    let ringed = || stuck.waiters.iter().filter(on_a_cycle);
    let best = ringed().filter(helps).max_by_key(|w| age(w)).or(ringed().max_by_key(|w| age(w)));
    assert_eq!(best.map(|waiter| waiter.id), Some(victim), "{}", brief(&stuck));
}

/// Checks that the cycle begins with the victim, that each step leads to the next, and that the
/// last step leads back.
fn check_cycle(stuck: &Snapshot, victim: RequestId, cycle: &[WaitFor]) {
    assert_eq!(cycle[0].request, victim, "{}", brief(stuck));
    for (step, next) in cycle.iter().zip(cycle.iter().skip(1).chain(&cycle[..1])) {
        let context = || format!("{step:?} {cycle:?} {}", brief(stuck));
        let waiter = stuck.waiters.iter().find(|waiter| waiter.id == step.request).unwrap();
        let By::Hold(token, holder) = step.by else { panic!("{}", context()) };
        assert_eq!((step.frame, &step.key), (waiter.frame, &waiter.request.items[step.item].key));
        assert!(in_the_way(stuck, waiter).contains(&(token, holder)), "{}", context());
        let next = stuck.waiters.iter().find(|waiter| waiter.id == next.request).unwrap();
        assert!(lineage(stuck, &Asker::waiting(next)).contains(&holder), "{}", context());
    }
}

fn check_state(state: &Snapshot) {
    for (at, hold) in state.holds.iter().enumerate() {
        for other in &state.holds[at + 1..] {
            check_compatible(state, hold, other);
        }
    }
    let mut used: BTreeMap<&Key, BTreeSet<u64>> = BTreeMap::new();
    for item in state.holds.iter().flat_map(|hold| &hold.items).filter(|item| !item.shared) {
        for slot in item.slots.iter() {
            assert!(used.entry(&item.key).or_default().insert(slot), "slot {slot} is held twice");
        }
    }
    for item in state.holds.iter().flat_map(|hold| &hold.items).filter(|item| item.shared) {
        let all =
            item.slots.iter().all(|slot| used.get(&item.key).is_some_and(|u| u.contains(&slot)));
        assert!(all, "shared slots that nobody holds: {item:?}");
    }
    if state.globals.recovery.is_some() {
        return;
    }
    let stuck = waiting_in_vain(state);
    assert!(stuck.is_empty(), "{stuck:?} wait in vain: {}", brief(state));
    for waiter in &state.waiters {
        assert!(
            waiter.status == WaiterStatus::Suspended
                || !own_deadlock(state, &Asker::waiting(waiter)),
            "{} waits for itself: {}",
            waiter.id,
            brief(state)
        );
        let paused = never(state, &Asker::waiting(waiter)) == Some(Never::Paused);
        assert!(!waiter.size_unchecked || paused || is_any_paused(state, waiter));
        let idle = waiter.status == WaiterStatus::Active && takes_part(state, waiter);
        assert!(
            !idle || admissible(state, &Asker::waiting(waiter)).is_none(),
            "{} could be granted: {}",
            waiter.id,
            brief(state)
        );
        assert!(waiter.barrier || waiter.passed < state.globals.bypass_max, "{waiter:?}");
    }
}

/// The number of waiters at the first key of a request that has as many as the request accepts, or
/// else at the key with the most waiters. Every waiter counts.
fn most_waiting(state: &Snapshot, asked: &Request) -> u64 {
    let waiting = |key: &Key| {
        let wants = |waiter: &&WaiterState| waiter.request.items.iter().any(|it| it.key == *key);
        state.waiters.iter().filter(wants).count() as u64
    };
    let each: Vec<u64> = asked.items.iter().map(|item| waiting(&item.key)).collect();
    let enough = each.iter().find(|n| asked.max_waiting.is_some_and(|most| **n >= most));
    enough.or(each.iter().max()).copied().unwrap_or(0)
}

fn is_any_paused(state: &Snapshot, waiter: &WaiterState) -> bool {
    waiter.request.items.iter().any(|item| is_paused(state, &item.key))
}

/// Checks that two holds do not conflict, unless the frame of one encloses the frame of the other.
fn check_compatible(state: &Snapshot, one: &HoldState, other: &HoldState) {
    let line = |frame: FrameId| {
        let parent = |id: FrameId| state.frames.iter().find(|frame| frame.id == id)?.parent;
        std::iter::successors(Some(frame), move |id| parent(*id)).collect::<Vec<_>>()
    };
    if line(one.frame).contains(&other.frame) || line(other.frame).contains(&one.frame) {
        return;
    }
    let pairs = one.items.iter().flat_map(|item| other.items.iter().map(move |o| (item, o)));
    for (item, o) in pairs {
        assert!(!conflict(&item.key, item.mode, &o.key, o.mode), "{item:?} {o:?} {}", brief(state));
    }
}

/// A state in one line, for messages.
fn brief(state: &Snapshot) -> String {
    let holds = state.holds.iter().map(|hold| {
        let items = hold.items.iter().map(|item| {
            let shared = if item.shared { "shared " } else { "" };
            if item.mode != Mode::Counted {
                return format!("{:?} {}", item.mode, item.key);
            }
            format!("{shared}{}x{} of {:?}", item.slots.count(), item.key, item.view)
        });
        format!("f{} has {:?}", hold.frame, items.collect::<Vec<_>>())
    });
    let waiters = state.waiters.iter().map(|waiter| {
        let items = waiter.request.items.iter().map(|item| match item.ask {
            Ask::Counted { count, view, given, .. } => {
                format!("{count}x{} of {view:?}, given {given:?}", item.key)
            }
            Ask::Read => format!("read {}", item.key),
            Ask::Write => format!("write {}", item.key),
        });
        format!(
            "{} f{} {:?} barrier {} prio {} passed {} wants {:?}",
            waiter.id,
            waiter.frame,
            waiter.status,
            waiter.barrier,
            waiter.request.priority,
            waiter.passed,
            items.collect::<Vec<_>>()
        )
    });
    let frames = state.frames.iter().map(|frame| format!("f{} in {:?}", frame.id, frame.parent));
    let parts = holds.chain(waiters).chain(frames).collect::<Vec<_>>();
    format!("\n  {}\n  settings {:?}", parts.join("\n  "), state.settings)
}
