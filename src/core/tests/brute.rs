//! The rules of admission by the letter, over plain data, without any index: slow and simple.

use std::collections::{BTreeMap, BTreeSet};

use super::super::*;

/// Who asks for what, whether it waits already or not.
struct Asker<'a> {
    id: RequestId,
    frame: FrameId,
    parent: Option<FrameId>,
    asked: &'a Request,
    barrier: bool,
}

impl<'a> Asker<'a> {
    fn waiting(waiter: &'a WaiterState) -> Self {
        let WaiterState { id, request: asked, frame, barrier, .. } = waiter;
        Asker { id: *id, frame: *frame, parent: None, asked, barrier: *barrier }
    }
}

/// Own views of locks in use, and what a bare idle request gets.
fn view_of(state: &Snapshot, key: &Key, stated: Option<View>) -> View {
    if let Some(view @ View::Canal { .. }) = stated {
        return view;
    }
    let find = |views: &[StoredView]| views.iter().find(|v| v.key == *key).map(|v| v.view);
    let mine = find(&state.in_use).or_else(|| find(&state.views));
    mine.or(stated).unwrap_or(View::Slots { slots: 1 })
}

fn counted(item: &Item) -> (u64, Option<View>) {
    match item.ask {
        Ask::Counted { count, view } => (count, view),
        Ask::Read | Ask::Write => panic!("nothing else is granted"),
    }
}

fn held(state: &Snapshot, key: &Key) -> u64 {
    let items = state.holds.iter().flat_map(|hold| &hold.items).filter(|item| item.key == *key);
    items.flat_map(|item| item.slots.iter()).collect::<BTreeSet<u64>>().len() as u64
}

fn kin(state: &Snapshot, asker: &Asker<'_>) -> Vec<FrameId> {
    let frame = |id: FrameId| state.frames.iter().find(|frame| frame.id == id);
    let mut kin = vec![asker.frame];
    let mut next = match frame(asker.frame) {
        Some(frame) => frame.parent,
        None => asker.parent.filter(|parent| frame(*parent).is_some_and(|outer| !outer.ended)),
    };
    while let Some(outer) = next {
        kin.push(outer);
        next = frame(outer).and_then(|frame| frame.parent);
    }
    kin
}

fn session(state: &Snapshot, asker: &Asker<'_>) -> FrameId {
    *kin(state, asker).last().unwrap()
}

fn shares(state: &Snapshot, asker: &Asker<'_>, item: &Item) -> bool {
    let Ask::Counted { count, view: stated } = item.ask else { return false };
    let kin = kin(state, asker);
    view_of(state, &item.key, stated).kind() == Kind::Slots
        && state.holds.iter().filter(|hold| kin.contains(&hold.frame)).any(|hold| {
            hold.items.iter().any(|held| {
                held.key == item.key
                    && held.mode == Mode::Counted
                    && held.view.map(View::kind) == Some(Kind::Slots)
                    && held.slots.count() >= count
            })
        })
}

fn comparable(one: &Key, other: &Key) -> bool {
    one.covers(other) || other.covers(one)
}

fn conflict(key: &Key, mode: Mode, other: &Key, other_mode: Mode) -> bool {
    comparable(key, other) && (mode == Mode::Write || other_mode == Mode::Write)
}

/// Whether a hold of the asker's own keeps everybody waiting who competes with an item.
fn covers(state: &Snapshot, asker: &Asker<'_>, item: &Item) -> bool {
    let kin = kin(state, asker);
    let own = state.holds.iter().filter(|hold| kin.contains(&hold.frame));
    own.flat_map(|hold| &hold.items).any(|held| {
        held.key.covers(&item.key) && (held.mode == Mode::Write || item.ask.mode() != Mode::Write)
    })
}

fn own_deadlock(state: &Snapshot, asker: &Asker<'_>) -> bool {
    let kin = kin(state, asker);
    asker.asked.items.iter().any(|item| {
        let Ask::Counted { count, view: stated } = item.ask else { return false };
        let holds = state.holds.iter().filter(|hold| kin.contains(&hold.frame));
        let items = holds.flat_map(|hold| &hold.items).filter(|held| held.key == item.key);
        let slots: BTreeSet<u64> = items.flat_map(|held| held.slots.iter()).collect();
        let own = slots.len() as u64;
        let capacity = view_of(state, &item.key, stated).capacity();
        !shares(state, asker, item) && own > 0 && own + count > capacity
    })
}

fn parked(state: &Snapshot, waiter: &WaiterState) -> bool {
    waiter.request.items.iter().any(|item| {
        let Ask::Counted { count, view: stated } = item.ask else { return false };
        let follows = !matches!(stated, Some(View::Canal { .. }));
        follows && count > view_of(state, &item.key, stated).capacity()
    })
}

fn takes_part(state: &Snapshot, waiter: &WaiterState) -> bool {
    waiter.status != WaiterStatus::Suspended && !parked(state, waiter)
}

fn fits(state: &Snapshot, item: &Item) -> bool {
    let Ask::Counted { count, view: stated } = item.ask else { return true };
    held(state, &item.key).saturating_add(count) <= view_of(state, &item.key, stated).capacity()
}

fn ahead(waiter: &WaiterState, asker: &Asker<'_>) -> bool {
    match (waiter.barrier, asker.barrier) {
        (true, false) => true,
        (false, true) => false,
        (true, true) => waiter.id < asker.id,
        (false, false) => (-waiter.request.priority, waiter.id) < (-asker.asked.priority, asker.id),
    }
}

/// Whether a waiter bars a request, own blockers not looked at.
fn bars(state: &Snapshot, waiter: &WaiterState, asker: &Asker<'_>) -> bool {
    if !takes_part(state, waiter) || waiter.id == asker.id || !ahead(waiter, asker) {
        return false;
    }
    asker.asked.items.iter().any(|item| {
        waiter.request.items.iter().any(|other| {
            let slots = bars_for_slots(state, waiter, asker, item, other);
            let (mode, other_mode) = (item.ask.mode(), other.ask.mode());
            let by_mode = conflict(&item.key, mode, &other.key, other_mode);
            slots || by_mode && !covers(state, asker, item) && !shares(state, asker, item)
        })
    })
}

fn bars_for_slots(
    state: &Snapshot,
    waiter: &WaiterState,
    asker: &Asker<'_>,
    item: &Item,
    other: &Item,
) -> bool {
    let both = item.ask.mode() == Mode::Counted && other.ask.mode() == Mode::Counted;
    if !both || item.key != other.key || shares(state, asker, item) {
        return false;
    }
    let capacity = |item: &Item| view_of(state, &item.key, counted(item).1).capacity();
    let excepted = !waiter.barrier && !fits(state, other) && capacity(item) > capacity(other);
    !excepted
}

/// Whether nobody else holds what conflicts.
fn is_unheld(state: &Snapshot, asker: &Asker<'_>, item: &Item) -> bool {
    let kin = kin(state, asker);
    let others = state.holds.iter().filter(|hold| !kin.contains(&hold.frame));
    !others
        .flat_map(|hold| &hold.items)
        .any(|held| conflict(&held.key, held.mode, &item.key, item.ask.mode()))
}

fn free(state: &Snapshot, asker: &Asker<'_>) -> bool {
    asker.asked.items.iter().all(|item| {
        is_unheld(state, asker, item) && (shares(state, asker, item) || fits(state, item))
    })
}

/// Whether a request can be granted, and if so, whether only by passing own blockers.
fn admissible(state: &Snapshot, asker: &Asker<'_>) -> Option<bool> {
    if !free(state, asker) {
        return None;
    }
    let barring: Vec<&WaiterState> =
        state.waiters.iter().filter(|waiter| bars(state, waiter, asker)).collect();
    if barring.is_empty() {
        return Some(false);
    }
    let session = session(state, asker);
    let holds = state.holds.iter().any(|hold| root(state, hold.frame) == session);
    if !holds {
        return None;
    }
    let stuck = remainder(state, Some(session));
    barring.iter().all(|waiter| leads_to(&stuck, waiter.id, session)).then_some(true)
}

/// Whether a request waits for a session, directly or through others, if it waits at all.
fn leads_to(state: &Snapshot, request: RequestId, session: FrameId) -> bool {
    let (mut next, mut seen) = (vec![request], BTreeSet::new());
    while let Some(id) = next.pop() {
        let Some(waiter) = state.waiters.iter().find(|waiter| waiter.id == id) else { continue };
        if root(state, waiter.frame) == session {
            return true;
        }
        if !seen.insert(id) {
            continue;
        }
        let asker = Asker::waiting(waiter);
        let before = state.waiters.iter().filter(|other| bars(state, other, &asker));
        next.extend(before.map(|other| other.id));
        for (_, holder) in in_the_way(state, waiter) {
            if root(state, holder) == session {
                return true;
            }
            let others = state.waiters.iter();
            let inside = others.filter(|w| kin(state, &Asker::waiting(w)).contains(&holder));
            next.extend(inside.map(|other| other.id));
        }
    }
    false
}

fn root(state: &Snapshot, frame: FrameId) -> FrameId {
    let parent = |id: FrameId| state.frames.iter().find(|frame| frame.id == id)?.parent;
    std::iter::successors(Some(frame), |id| parent(*id)).last().unwrap()
}

/// Who waits in vain, whatever becomes of what is granted on the way.
pub(super) fn waiting_in_vain(state: &Snapshot) -> BTreeSet<RequestId> {
    ids(&remainder(state, None))
}

fn ids(state: &Snapshot) -> BTreeSet<RequestId> {
    state.waiters.iter().map(|waiter| waiter.id).collect()
}

/// Admits everybody who can be; then lets everybody end who can; then lets everybody pass own
/// blockers who can: each all at once and again and again, a later one only when the earlier ones
/// change nothing. What is admitted is forgotten. Nothing of the session `frozen` is admitted or
/// ends; where there is one, nobody passes own blockers.
fn remainder(state: &Snapshot, frozen: Option<FrameId>) -> Snapshot {
    let plain = |state: &Snapshot, waiter: &WaiterState| {
        let asker = Asker::waiting(waiter);
        Some(root(state, waiter.frame)) != frozen
            && free(state, &asker)
            && !state.waiters.iter().any(|other| bars(state, other, &asker))
    };
    let past_own = |state: &Snapshot, waiter: &WaiterState| {
        frozen.is_none() && admissible(state, &Asker::waiting(waiter)).is_some()
    };
    let next = |state: &Snapshot| {
        let admitted = forget(state, plain).or_else(|| drop_holds(state, frozen));
        admitted.or_else(|| forget(state, past_own))
    };
    let start = forget(state, |state, waiter| !takes_part(state, waiter));
    last(start.unwrap_or_else(|| state.clone()), next)
}

/// Who is in a deadlock, or waits for what is held in one: who goes first is left out.
fn deadlocked(state: &Snapshot) -> Snapshot {
    let free = |state: &Snapshot, waiter: &WaiterState| {
        !takes_part(state, waiter) || free(state, &Asker::waiting(waiter))
    };
    last(state.clone(), |state| forget(state, free).or_else(|| drop_holds(state, None)))
}

fn last(mut state: Snapshot, next: impl Fn(&Snapshot) -> Option<Snapshot>) -> Snapshot {
    while let Some(then) = next(&state) {
        state = then;
    }
    state
}

/// The state without the waiters that are such, if there are any.
fn forget(state: &Snapshot, such: impl Fn(&Snapshot, &WaiterState) -> bool) -> Option<Snapshot> {
    let mut left = state.clone();
    left.waiters.retain(|waiter| !such(state, waiter));
    (left.waiters.len() < state.waiters.len()).then_some(left)
}

/// The state without what is held by frames inside which nobody waits, if there is any.
fn drop_holds(state: &Snapshot, frozen: Option<FrameId>) -> Option<Snapshot> {
    let waiting = state.waiters.iter().filter(|waiter| takes_part(state, waiter));
    let stuck: BTreeSet<FrameId> =
        waiting.flat_map(|waiter| kin(state, &Asker::waiting(waiter))).collect();
    let mut left = state.clone();
    left.holds
        .retain(|hold| Some(root(state, hold.frame)) == frozen || stuck.contains(&hold.frame));
    (left.holds.len() < state.holds.len()).then_some(left)
}

/// Checks one step of a table: each outcome is right when it is decided, nobody waits who could be
/// granted, no slot is held twice, replay and restore give the identical table.
pub(super) fn check_step(before: &Table, entry: &Entry, outcomes: &[Outcome], after: &Table) {
    let mut replay = before.clone();
    replay.revision = Revision(before.revision().0 + 1);
    replay.mark(entry);
    for outcome in outcomes {
        check_outcome(&replay, entry, outcome);
        replay.enact(entry, outcome).unwrap();
    }
    let state = after.snapshot();
    assert_eq!(replay.snapshot(), state, "replay differs");
    assert_eq!(Table::restore(&state, after.rules).unwrap().snapshot(), state, "restore differs");
    check_state(&state, after.rules);
}

fn check_outcome(table: &Table, entry: &Entry, outcome: &Outcome) {
    let state = table.snapshot();
    let asker = |id: RequestId, frame: FrameId| match &entry.change {
        Change::Request(asked) if id.0 == table.revision().0 => {
            Asker { id, frame, parent: asked.parent, asked, barrier: false }
        }
        _ => panic!("{outcome:?} of a request that is unknown"),
    };
    let waiting = |id: RequestId| state.waiters.iter().find(|waiter| waiter.id == id);
    let rules = table.rules == Rules::Current;
    match outcome {
        Outcome::Granted(granted) => {
            let asker = match waiting(granted.request) {
                Some(waiter) => Asker::waiting(waiter),
                None => asker(granted.request, granted.frame),
            };
            let verdict = admissible(&state, &asker);
            assert!(
                !rules || verdict == Some(granted.past_own),
                "{granted:?} of {:?}: {verdict:?} {}",
                asker.asked,
                brief(&state)
            );
            assert!(granted.token >= state.next_token);
        }
        Outcome::Refused { request, why: Refusal::Full { .. } } => {
            let frame = FrameId(request.0);
            let Change::Request(asked) = &entry.change else { panic!("only askers are refused") };
            let frame = table.frame_of(asked.host, &asked.owner).unwrap_or(frame);
            assert!(
                !rules || admissible(&state, &asker(*request, frame)).is_none(),
                "{}",
                brief(&state)
            );
        }
        Outcome::Refused { request, why: Refusal::Deadlock { cycle } } => {
            check_victim(&state, *request, cycle);
        }
        Outcome::Refused { request, why: Refusal::OwnDeadlock { .. } } => {
            let asker = match waiting(*request) {
                Some(waiter) => Asker::waiting(waiter),
                None => {
                    let Change::Request(asked) = &entry.change else { panic!("nobody asks") };
                    let frame = table.frame_of(asked.host, &asked.owner);
                    asker(*request, frame.unwrap_or(FrameId(request.0)))
                }
            };
            assert!(own_deadlock(&state, &asker), "{}", brief(&state));
        }
        _ => {}
    }
}

/// Of the requests on a cycle whose refusal lets another go that is on a cycle, a victim is that of
/// the youngest session, and the latest of it; if there is none, of all on a cycle.
fn check_victim(state: &Snapshot, victim: RequestId, cycle: &[CycleStep]) {
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

/// The cycle begins with the victim, each step leads on to the next, and the last one back.
fn check_cycle(stuck: &Snapshot, victim: RequestId, cycle: &[CycleStep]) {
    assert_eq!(cycle[0].request, victim, "{}", brief(stuck));
    for (step, next) in cycle.iter().zip(cycle.iter().skip(1).chain(&cycle[..1])) {
        let context = || format!("{step:?} {cycle:?} {}", brief(stuck));
        let waiter = stuck.waiters.iter().find(|waiter| waiter.id == step.request).unwrap();
        let By::Hold(token, holder) = step.by else { panic!("{}", context()) };
        assert_eq!((step.frame, &step.key), (waiter.frame, &waiter.request.items[step.item].key));
        assert!(in_the_way(stuck, waiter).contains(&(token, holder)), "{}", context());
        let next = stuck.waiters.iter().find(|waiter| waiter.id == next.request).unwrap();
        assert!(kin(stuck, &Asker::waiting(next)).contains(&holder), "{}", context());
    }
}

/// What others hold that keeps a request.
fn in_the_way(state: &Snapshot, waiter: &WaiterState) -> BTreeSet<(Token, FrameId)> {
    let asker = Asker::waiting(waiter);
    let kin = kin(state, &asker);
    let others = state.holds.iter().filter(|hold| !kin.contains(&hold.frame));
    let slots_of_kin = |key: &Key| {
        let own = state.holds.iter().filter(|hold| kin.contains(&hold.frame));
        let items = own.flat_map(|hold| &hold.items).filter(|item| item.key == *key);
        items.flat_map(|item| item.slots.iter()).collect::<BTreeSet<u64>>()
    };
    let keeps = |held: &HeldItem, item: &Item| {
        let full = !shares(state, &asker, item) && !fits(state, item);
        conflict(&held.key, held.mode, &item.key, item.ask.mode())
            || full
                && held.key == item.key
                && held.slots.iter().any(|slot| !slots_of_kin(&item.key).contains(&slot))
    };
    let keeping = others.filter(|hold| {
        let items = &waiter.request.items;
        hold.items.iter().any(|held| items.iter().any(|item| keeps(held, item)))
    });
    keeping.map(|hold| (hold.token, hold.frame)).collect()
}

/// Whether a request waits, through what others hold, for its own frame or one that encloses it.
fn is_on_a_cycle(stuck: &Snapshot, start: &WaiterState) -> bool {
    let line = |waiter: &WaiterState| kin(stuck, &Asker::waiting(waiter));
    let mut next: Vec<FrameId> = in_the_way(stuck, start).iter().map(|by| by.1).collect();
    let mut seen = BTreeSet::new();
    while let Some(at) = next.pop() {
        if line(start).contains(&at) {
            return true;
        }
        if seen.insert(at) {
            let inside = stuck.waiters.iter().filter(|waiter| line(waiter).contains(&at));
            next.extend(inside.flat_map(|waiter| in_the_way(stuck, waiter)).map(|by| by.1));
        }
    }
    false
}

fn check_state(state: &Snapshot, rules: Rules) {
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
    if rules != Rules::Current {
        return;
    }
    let stuck = waiting_in_vain(state);
    assert!(stuck.is_empty(), "{stuck:?} wait in vain: {}", brief(state));
    for waiter in &state.waiters {
        assert!(
            !takes_part(state, waiter) || !own_deadlock(state, &Asker::waiting(waiter)),
            "{} waits for itself: {}",
            waiter.id,
            brief(state)
        );
        let idle = waiter.status == WaiterStatus::Active && !parked(state, waiter);
        assert!(
            !idle || admissible(state, &Asker::waiting(waiter)).is_none(),
            "{} could be granted: {}",
            waiter.id,
            brief(state)
        );
        assert!(
            waiter.barrier || waiter.overtaken.iter().all(|n| *n < state.bypass_max),
            "{waiter:?}"
        );
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
            Ask::Counted { count, view } => format!("{count}x{} of {view:?}", item.key),
            Ask::Read => format!("read {}", item.key),
            Ask::Write => format!("write {}", item.key),
        });
        format!(
            "{} f{} {:?} barrier {} prio {} overtaken {:?} wants {:?}",
            waiter.id,
            waiter.frame,
            waiter.status,
            waiter.barrier,
            waiter.request.priority,
            waiter.overtaken,
            items.collect::<Vec<_>>()
        )
    });
    let frames = state.frames.iter().map(|frame| format!("f{} in {:?}", frame.id, frame.parent));
    let parts = holds.chain(waiters).chain(frames).collect::<Vec<_>>();
    let own = state.in_use.iter().map(|view| format!("{}={}", view.key, view.view));
    let stored = state.views.iter().map(|view| format!("{}:={}", view.key, view.view));
    let views: Vec<_> = own.chain(stored).collect();
    format!("\n  {}\n  views {views:?}", parts.join("\n  "))
}

/// No two holds conflict, but those of frames of which one encloses the other.
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
