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
    let (count, stated) = counted(item);
    let kin = kin(state, asker);
    view_of(state, &item.key, stated).kind() == Kind::Slots
        && state.holds.iter().filter(|hold| kin.contains(&hold.frame)).any(|hold| {
            hold.items.iter().any(|held| {
                held.key == item.key
                    && held.view.map(View::kind) == Some(Kind::Slots)
                    && held.slots.count() >= count
            })
        })
}

fn own_deadlock(state: &Snapshot, asker: &Asker<'_>) -> bool {
    let kin = kin(state, asker);
    asker.asked.items.iter().any(|item| {
        let (count, stated) = counted(item);
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
        let (count, stated) = counted(item);
        let follows = !matches!(stated, Some(View::Canal { .. }));
        follows && count > view_of(state, &item.key, stated).capacity()
    })
}

fn fits(state: &Snapshot, item: &Item) -> bool {
    let (count, stated) = counted(item);
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
    let takes_part = waiter.status != WaiterStatus::Suspended && !parked(state, waiter);
    if !takes_part || waiter.id == asker.id || !ahead(waiter, asker) {
        return false;
    }
    asker.asked.items.iter().any(|item| {
        let competing = waiter.request.items.iter().find(|other| other.key == item.key);
        competing.is_some_and(|other| {
            let capacity = |item: &Item| view_of(state, &item.key, counted(item).1).capacity();
            let excepted =
                !waiter.barrier && !fits(state, other) && capacity(item) > capacity(other);
            !excepted && !shares(state, asker, item)
        })
    })
}

fn free(state: &Snapshot, asker: &Asker<'_>) -> bool {
    asker.asked.items.iter().all(|item| shares(state, asker, item) || fits(state, item))
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

/// Lets every session end that can without `frozen` moving, and says who still waits.
fn stuck_without(state: &Snapshot, frozen: FrameId) -> BTreeSet<RequestId> {
    let mut state = state.clone();
    for waiter in &mut state.waiters {
        waiter.status = WaiterStatus::Active;
    }
    loop {
        let before = (state.holds.len(), state.waiters.len());
        while admit_one(&mut state, frozen) {}
        let still = state.clone();
        let waits = |root_id: FrameId| {
            let mut waiters = still.waiters.iter().filter(|waiter| !parked(&still, waiter));
            waiters.any(|waiter| root(&still, waiter.frame) == root_id)
        };
        state.holds.retain(|hold| {
            let root = root(&still, hold.frame);
            root == frozen || waits(root)
        });
        if before == (state.holds.len(), state.waiters.len()) {
            return state.waiters.iter().map(|waiter| waiter.id).collect();
        }
    }
}

/// Grants to one waiter that can be granted, or refuses one that waits for itself.
fn admit_one(state: &mut Snapshot, frozen: FrameId) -> bool {
    let moves =
        |waiter: &&WaiterState| !parked(state, waiter) && root(state, waiter.frame) != frozen;
    let hopeless = state
        .waiters
        .iter()
        .filter(moves)
        .find(|waiter| own_deadlock(state, &Asker::waiting(waiter)))
        .map(|waiter| waiter.id);
    if let Some(hopeless) = hopeless {
        state.waiters.retain(|waiter| waiter.id != hopeless);
        return true;
    }
    let next = state.waiters.iter().filter(moves).find(|waiter| {
        let asker = Asker::waiting(waiter);
        free(state, &asker) && !state.waiters.iter().any(|other| bars(state, other, &asker))
    });
    let Some(next) = next.map(|waiter| waiter.id) else { return false };
    pretend_grant(state, next);
    true
}

fn pretend_grant(state: &mut Snapshot, request: RequestId) {
    let at = state.waiters.iter().position(|waiter| waiter.id == request).unwrap();
    let waiter = state.waiters.remove(at);
    let asker = Asker::waiting(&waiter);
    let items = waiter.request.items.iter().map(|item| {
        let (count, stated) = counted(item);
        let slots = Slots(vec![SlotRange(0, count - 1)]);
        let view = view_of(state, &item.key, stated);
        let (key, shared, mode) = (item.key.clone(), shares(state, &asker, item), item.ask.mode());
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

fn check_state(state: &Snapshot, rules: Rules) {
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
            format!("{shared}{}x{} of {:?}", item.slots.count(), item.key, item.view)
        });
        format!("f{} has {:?}", hold.frame, items.collect::<Vec<_>>())
    });
    let waiters = state.waiters.iter().map(|waiter| {
        let items = waiter.request.items.iter().map(|item| {
            let (count, stated) = counted(item);
            format!("{count}x{} of {:?}", item.key, stated)
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
