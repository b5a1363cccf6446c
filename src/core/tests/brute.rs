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
    let items = state.holds.iter().flat_map(|hold| &hold.items);
    items.filter(|item| item.key == *key && !item.shared).map(|item| item.slots.count()).sum()
}

fn kin(state: &Snapshot, asker: &Asker<'_>) -> Vec<FrameId> {
    let frame = |id: FrameId| state.frames.iter().find(|frame| frame.id == id);
    let mut kin = vec![asker.frame];
    let mut next = match frame(asker.frame) {
        Some(frame) => frame.parent,
        None => asker.parent.filter(|parent| frame(*parent).is_some()),
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
        let items = holds.flat_map(|hold| &hold.items);
        let own: u64 = items
            .filter(|held| held.key == item.key && !held.shared)
            .map(|held| held.slots.count())
            .sum();
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
    let stuck = stuck_without(state, session);
    barring.iter().all(|waiter| stuck.contains(&waiter.id)).then_some(true)
}

fn root(state: &Snapshot, frame: FrameId) -> FrameId {
    let parent = |id: FrameId| state.frames.iter().find(|frame| frame.id == id)?.parent;
    std::iter::successors(Some(frame), |id| parent(*id)).last().unwrap()
}

/// Lets everything end that can without the session `frozen` moving, and says who still waits.
fn stuck_without(state: &Snapshot, frozen: FrameId) -> BTreeSet<RequestId> {
    remainder(state, Some(frozen), Thought::Kept)
}

/// What becomes of a request that is granted in thought while its frame has others that wait.
#[derive(Clone, Copy, PartialEq)]
enum Thought {
    /// It is held.
    Kept,
    /// It is forgotten: only deadlocks among what is held already are found. Those that further
    /// grants will make are found when they are made, if not earlier.
    Forgotten,
}

/// Who waits in vain, whatever becomes of what is granted on the way.
pub(super) fn waiting_in_vain(state: &Snapshot) -> BTreeSet<RequestId> {
    deadlocked(state, Thought::Kept)
}

/// Who waits in vain.
fn deadlocked(state: &Snapshot, granted: Thought) -> BTreeSet<RequestId> {
    let left = remainder(state, None, granted);
    let takes_part = |id: &RequestId| {
        state.waiters.iter().any(|waiter| waiter.id == *id && takes_part(state, waiter))
    };
    left.into_iter().filter(takes_part).collect()
}

fn remainder(state: &Snapshot, frozen: Option<FrameId>, granted: Thought) -> BTreeSet<RequestId> {
    let mut state = state.clone();
    for waiter in &mut state.waiters {
        if waiter.status == WaiterStatus::Detached {
            waiter.status = WaiterStatus::Active;
        }
    }
    // Who is back and waits for itself is refused at once.
    let whole = state.clone();
    state.waiters.retain(|waiter| {
        let stopped = waiter.status == WaiterStatus::Suspended;
        stopped || !own_deadlock(&whole, &Asker::waiting(waiter))
    });
    loop {
        let before = (state.holds.len(), state.waiters.len());
        while admit_one(&mut state, frozen, granted) {}
        let still = state.clone();
        let waiting = still.waiters.iter().filter(|waiter| takes_part(&still, waiter));
        let stuck: BTreeSet<FrameId> =
            waiting.flat_map(|waiter| kin(&still, &Asker::waiting(waiter))).collect();
        state
            .holds
            .retain(|hold| Some(root(&still, hold.frame)) == frozen || stuck.contains(&hold.frame));
        if before == (state.holds.len(), state.waiters.len()) {
            return state.waiters.iter().map(|waiter| waiter.id).collect();
        }
    }
}

fn moves_in(state: &Snapshot, waiter: &WaiterState, frozen: Option<FrameId>) -> bool {
    takes_part(state, waiter) && Some(root(state, waiter.frame)) != frozen
}

/// Grants to one waiter that can be granted.
fn admit_one(state: &mut Snapshot, frozen: Option<FrameId>, granted: Thought) -> bool {
    let moves = |waiter: &&WaiterState| moves_in(state, waiter, frozen);
    // Own blockers are passed where all may move, and not in asking who is one.
    let verdict = |waiter: &WaiterState| {
        let asker = Asker::waiting(waiter);
        if frozen.is_none() {
            return admissible(state, &asker);
        }
        let barred = state.waiters.iter().any(|other| bars(state, other, &asker));
        (free(state, &asker) && !barred).then_some(false)
    };
    let place = |waiter: &WaiterState| (!waiter.barrier, -waiter.request.priority, waiter.id);
    let all = state.waiters.iter().filter(moves);
    let free = all.filter_map(|waiter| Some((verdict(waiter)?, place(waiter), waiter.id)));
    let Some((_, _, next)) = free.min() else { return false };
    pretend_grant(state, next);
    // Who can only wait for its own frame now is refused.
    let whole = state.clone();
    state.waiters.retain(|waiter| {
        !moves_in(&whole, waiter, frozen) || !own_deadlock(&whole, &Asker::waiting(waiter))
    });
    if granted == Thought::Forgotten {
        state.holds.pop();
    }
    true
}

fn pretend_grant(state: &mut Snapshot, request: RequestId) {
    let at = state.waiters.iter().position(|waiter| waiter.id == request).unwrap();
    let waiter = state.waiters.remove(at);
    let asker = Asker::waiting(&waiter);
    let items = waiter.request.items.iter().map(|item| {
        let (mode, key) = (item.ask.mode(), item.key.clone());
        let Ask::Counted { count, view: stated } = item.ask else {
            return HeldItem { key, mode, slots: Slots::default(), shared: false, view: None };
        };
        let slots = Slots(vec![SlotRange(0, count - 1)]);
        let view = view_of(state, &item.key, stated);
        let shared = shares(state, &asker, item);
        HeldItem { key, mode, slots, shared, view: Some(view) }
    });
    let items = items.collect();
    state.holds.push(HoldState {
        token: Token(u64::MAX - request.0),
        request,
        frame: waiter.frame,
        since: waiter.since,
        asked_at: waiter.since,
        provisional: false,
        orphaned: false,
        asked: waiter.request,
        items,
    });
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

/// A victim waits in vain, and its refusal lets another go unless nobody's does.
fn check_victim(state: &Snapshot, victim: RequestId, cycle: &[CycleStep]) {
    let stuck = deadlocked(state, Thought::Kept);
    assert!(stuck.contains(&victim), "{victim} is in no deadlock: {}", brief(state));
    assert_eq!(cycle[0].request, victim, "{}", brief(state));
    let session = |frame| root(state, frame);
    for (step, next) in cycle.iter().zip(cycle.iter().skip(1).chain(&cycle[..1])) {
        assert_eq!(session(step.by.frame()), session(next.frame), "{cycle:?} {}", brief(state));
    }
    let helps = |id: RequestId| {
        let mut without = state.clone();
        without.waiters.retain(|waiter| waiter.id != id);
        deadlocked(&without, Thought::Kept).len() + 1 < stuck.len()
    };
    if !helps(victim) {
        let other = stuck.iter().find(|id| helps(**id) && is_on_a_cycle(state, **id));
        assert_eq!(other, None, "{victim} helps nobody: {}", brief(state));
    }
}

/// Whether a request waits, through others, for its own frame or one that encloses it.
fn is_on_a_cycle(state: &Snapshot, id: RequestId) -> bool {
    let table = Table::restore(state, Rules::Current).unwrap();
    let line = |frame: FrameId| {
        let parent = |id: FrameId| state.frames.iter().find(|frame| frame.id == id)?.parent;
        std::iter::successors(Some(frame), move |id| parent(*id)).collect::<Vec<_>>()
    };
    let waits_for = |waiter: &WaiterState| {
        let blockers = table.blockers(waiter.id).into_iter().map(|blocker| blocker.by.frame());
        blockers.filter(|frame| *frame != waiter.frame).collect::<Vec<_>>()
    };
    let start = state.waiters.iter().find(|waiter| waiter.id == id).unwrap();
    let (mut next, mut seen) = (waits_for(start), BTreeSet::new());
    while let Some(at) = next.pop() {
        if line(start.frame).contains(&at) {
            return true;
        }
        if seen.insert(at) {
            let inside = state.waiters.iter().filter(|waiter| line(waiter.frame).contains(&at));
            next.extend(inside.flat_map(waits_for));
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
    let stuck = deadlocked(state, Thought::Forgotten);
    assert!(stuck.is_empty(), "{stuck:?} wait in vain: {}", brief(state));
    for waiter in &state.waiters {
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
