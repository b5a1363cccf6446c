//! Reports which requests wait for which: of one process, of the whole table, and of a deadlock
//! because of which a request was refused.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::calls::parameters;
use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step, lost_track};
use crate::view::visible_table::{Shown, competing, held_item, mode_of};
use crate::waiters::Open;
use crate::wording::{self, ABOUT_TO_BE_GRANTED, bad, pid_of, time};
use canal_core::{By, FrameId, Key, Mode, RequestId, Table, UnixMillis, WaitFor, WaiterState};
use canal_protocol::{BlockerInfo, CycleStepInfo, Failure, PartyInfo, WaitInfo, Waits, WhyQuery};

/// The most waiting requests that a report lists with their blockers.
const WAITS_SHOWN_MAX: usize = 1000;

/// The most blockers that a report names for a waiting request.
const BLOCKERS_SHOWN_MAX: usize = 20;

/// The approximate maximum number of blockers of waiting requests that are examined for such a
/// report.
const BLOCKERS_LOOKED_AT_MAX: usize = 100_000;

impl Server {
    pub(crate) fn why(&self, caller: &Caller, query: &WhyQuery) -> Result {
        let table = self.decide.table();
        let frames = asked_frames(table, query)?;
        let shown = self.shown(caller.peer.uid);
        let mut waits = shown.chain(&frames);
        (waits.waiters, waits.waiters_left_out) = shown.waiting_for(frames, query);
        Ok(Step::reply(&waits))
    }

    pub(crate) fn graph(&self, caller: &Caller) -> Step {
        Step::reply(&self.shown(caller.peer.uid).graph())
    }
}

/// The frames that a query asks about.
fn asked_frames(table: &Table, query: &WhyQuery) -> Result<Vec<FrameId>> {
    let nothing = |what: String| {
        bad(format!("{what} neither holds nor waits for a lock"))
            .hint("run `canal status` to see the holders and waiters")
    };
    match (query.pid, query.session.as_deref()) {
        (Some(pid), None) => {
            let of_pid = table.frames().filter(|frame| pid != 0 && pid_of(&frame.owner) == pid);
            // A process with this pid that has ended, but left something, comes last.
            let mut frames: Vec<_> = of_pid.map(|frame| (frame.ended, frame.id)).collect();
            frames.sort_unstable();
            let frames: Vec<_> = frames.into_iter().map(|(_, id)| id).collect();
            if frames.is_empty() { Err(nothing(format!("process {pid}"))) } else { Ok(frames) }
        }
        (None, Some(session)) => {
            let frame = parameters::session(session)?;
            let known = table.frame(frame).is_some_and(|state| state.parent.is_none());
            if known { Ok(vec![frame]) } else { Err(nothing(format!("session {session}"))) }
        }
        _ => Err(bad("give exactly one of `pid` and `session`")),
    }
}

/// How much more a report may contain.
struct Budget {
    waits: usize,
    blockers: usize,
    /// How many requests were not examined because the budget was spent.
    left_out: u64,
}

/// The content of one report.
const BUDGET: Budget =
    Budget { waits: WAITS_SHOWN_MAX, blockers: BLOCKERS_LOOKED_AT_MAX, left_out: 0 };

impl Budget {
    /// What blocks a request. `None` if the budget is spent.
    fn blockers(&mut self, table: &Table, request: RequestId) -> Option<Vec<WaitFor>> {
        if self.waits == 0 || self.blockers == 0 {
            self.left_out += 1;
            return None;
        }
        let blockers = table.blockers(request);
        self.waits -= 1;
        self.blockers = self.blockers.saturating_sub(blockers.len());
        Some(blockers)
    }
}

impl Shown<'_> {
    /// All waiting requests.
    fn graph(&self) -> Waits {
        let mut budget = BUDGET;
        let waits = self.table.waiters();
        let waits = waits.filter_map(|it| self.wait(it, &budget.blockers(self.table, it.id)?));
        Waits { waits: waits.collect(), left_out: budget.left_out, ..Waits::default() }
    }

    /// The requests that wait in these frames and the frames that they enclose, then the requests
    /// that block them and wait themselves, and so on to the end.
    fn chain(&self, frames: &[FrameId]) -> Waits {
        let inside = self.table.waiters_inside();
        let within = |frame: FrameId| inside.get(&frame).into_iter().flatten().copied();
        let mut budget = BUDGET;
        let mut waits = Waits::default();
        let mut seen = BTreeSet::new();
        let mut next: VecDeque<RequestId> = VecDeque::new();
        for frame in frames {
            let own = self.table.waiters_in(*frame).map(|waiter| waiter.id);
            next.extend(own.chain(within(*frame)).filter(|request| seen.insert(*request)));
        }
        while let Some(request) = next.pop_front() {
            let Some(waiter) = self.table.waiter(request) else { continue };
            let Some(blockers) = budget.blockers(self.table, request) else { continue };
            waits.waits.extend(self.wait(waiter, &blockers));
            for blocker in blockers {
                match blocker.by {
                    // A hold can end only once its frame proceeds, and the frame only once the
                    // requests inside it are granted.
                    By::Hold(_, frame) => {
                        next.extend(within(frame).filter(|request| seen.insert(*request)));
                    }
                    By::Waiter(request, _) => {
                        next.extend(seen.insert(request).then_some(request));
                    }
                }
            }
        }
        Waits { left_out: budget.left_out, ..waits }
    }

    /// The requests that wait for one of these frames, or for any frame of the session that the
    /// query names; then the requests that wait for their sessions, and so on to the end. Also
    /// returns how many requests were not examined.
    fn waiting_for(&self, frames: Vec<FrameId>, query: &WhyQuery) -> (Vec<WaitInfo>, u64) {
        let mut of_session: BTreeMap<FrameId, Vec<FrameId>> = BTreeMap::new();
        for frame in self.table.frames() {
            of_session.entry(self.table.session(frame.id)).or_default().push(frame.id);
        }
        let all_of = |frame| of_session.get(&self.table.session(frame)).into_iter().flatten();
        let mut awaited: BTreeSet<FrameId> = match query.session {
            Some(_) => frames.iter().flat_map(|frame| all_of(*frame)).copied().collect(),
            None => frames.iter().copied().collect(),
        };
        let mut budget = BUDGET;
        let rest = self.table.waiters();
        let rest =
            rest.filter_map(|waiter| Some((waiter, budget.blockers(self.table, waiter.id)?)));
        let mut rest: Vec<(&WaiterState, Vec<WaitFor>)> = rest.collect();
        let mut found = Vec::new();
        loop {
            let waits = |(_, blockers): &mut (&WaiterState, Vec<WaitFor>)| {
                blockers.iter().any(|blocker| awaited.contains(&blocker.by.frame()))
            };
            let next: Vec<_> = rest.extract_if(.., waits).collect();
            if next.is_empty() {
                return (found, budget.left_out);
            }
            for (waiter, blockers) in next {
                found.extend(self.wait(waiter, &blockers));
                awaited.extend(all_of(waiter.frame).copied());
            }
        }
    }

    fn wait(&self, waiter: &WaiterState, blockers: &[WaitFor]) -> Option<WaitInfo> {
        let asked = &waiter.request;
        let (key, mode, reason) = if let Some((why, mode, clause)) = self.why(waiter.id) {
            (why.key, mode, clause)
        } else {
            let item = asked.items.first()?;
            (item.key.clone(), item.ask.mode(), ABOUT_TO_BE_GRANTED.to_owned())
        };
        let shown = blockers.iter().filter_map(|blocker| {
            let mode = mode_of(asked, blocker.item)?;
            Some(self.blocker(&self.open(blocker.by)?, &blocker.key, mode))
        });
        Some(WaitInfo {
            waiter: self.party(&Open::of_waiter(self.table, waiter)),
            key: key.to_string(),
            mode,
            since: time(waiter.since),
            reason,
            blockers: shown.take(BLOCKERS_SHOWN_MAX).collect(),
            blockers_left_out: blockers.len().saturating_sub(BLOCKERS_SHOWN_MAX) as u64,
        })
    }

    /// The hold or request for which another request waits.
    fn open(&self, by: By) -> Option<Open> {
        Some(match by {
            By::Hold(token, _) => Open::of_hold(self.table, self.table.hold(token)?),
            By::Waiter(request, _) => Open::of(self.table, request)?,
        })
    }

    /// A hold that blocks a request for a key, or a request that goes before it.
    fn blocker(&self, open: &Open, key: &Key, mode: Mode) -> BlockerInfo {
        let item = match &open.hold {
            Some(hold) => held_item(&hold.items, key, mode),
            None => {
                let items = open.asked.items.iter().map(|item| (&item.key, item.ask.mode()));
                // It may be behind the other request only because of its place in the queue of the
                // key.
                let same = || items.clone().find(|(other, _)| *other == key);
                competing(items.clone(), key, mode).or_else(same)
            }
        };
        let (key, mode) = item.unwrap_or((key, mode));
        BlockerInfo {
            party: self.party(open),
            key: key.to_string(),
            mode,
            holds: open.hold.is_some(),
            since: time(open.begun_at()),
        }
    }

    pub(crate) fn party(&self, open: &Open) -> PartyInfo {
        let asked = &open.asked;
        PartyInfo {
            pid: pid_of(&asked.owner),
            uid: asked.uid,
            command: self.command(asked.uid, &asked.command.0),
            session: format!("s{}", open.session),
            lease: asked.ttl_ms.is_some(),
            run: asked.over_nodes.as_deref().map(|over| over.run),
        }
    }

    /// The party of a frame whose request is not known.
    fn party_of(&self, frame: FrameId) -> PartyInfo {
        if let Some(hold) = self.table.holds_in(frame).next() {
            return self.party(&Open::of_hold(self.table, hold));
        }
        let state = self.table.frame(frame);
        PartyInfo {
            pid: state.map_or(0, |state| pid_of(&state.owner)),
            uid: state.map_or(0, |state| state.uid),
            command: None,
            session: self.session(frame),
            lease: state.is_some_and(|state| state.lease.is_some()),
            run: None,
        }
    }
}

impl Server {
    /// The failure of a request that was chosen to end a deadlock, as a user may see it. `refused`
    /// is that request: the table no longer contains it.
    pub(crate) fn deadlock(&self, viewer: u32, cycle: &[WaitFor], refused: &Open) -> Failure {
        let Some((first, last)) = cycle.first().zip(cycle.last()) else {
            return lost_track();
        };
        // The frame of the first request may no longer exist. The last step waits for a frame of
        // the same session, and that frame exists.
        let shown = self.shown(viewer);
        let session = shown.table.session(last.by.frame());
        // The request, whether it still waits, was granted, or was refused in this turn.
        let asked = |request: RequestId| {
            let open = match self.waiters.get(request) {
                _ if request == first.request => Open { session, ..refused.clone() },
                Some(waiter) => waiter.open.clone(),
                None => Open::of(shown.table, request)?,
            };
            Some(Open { hold: None, ..open })
        };
        let steps = cycle.iter().map(|step| {
            let waiter = asked(step.request);
            let mode = waiter.as_ref().and_then(|open| mode_of(&open.asked, step.item));
            let mode = mode.unwrap_or(Mode::Counted);
            let blocker = match step.by {
                By::Hold(..) => shown.open(step.by),
                By::Waiter(request, _) => asked(request),
            };
            let unknown = || BlockerInfo {
                party: shown.party_of(step.by.frame()),
                key: step.key.to_string(),
                mode,
                holds: matches!(step.by, By::Hold(..)),
                since: time(UnixMillis(0)),
            };
            CycleStepInfo {
                waiter: waiter.map_or_else(|| shown.party_of(step.frame), |it| shown.party(&it)),
                key: step.key.to_string(),
                mode,
                // It may have ended in this turn.
                blocker: blocker.map_or_else(unknown, |open| shown.blocker(&open, &step.key, mode)),
                node: None,
            }
        });
        let steps: Box<[_]> = steps.collect();
        let sessions: BTreeSet<_> = steps.iter().map(|step| &step.waiter.session).collect();
        let processes: BTreeSet<_> = cycle.iter().map(|step| step.frame).collect();
        let mut failure = wording::deadlock(&first.key, sessions.len(), processes.len());
        failure.cycle = steps;
        failure
    }
}
