//! The status of locks, the leader of a key, and the metrics.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::calls::call::{Answer, ConnId, Follows, written};
use crate::calls::items;
use crate::cluster::membership::Cluster;
use crate::logging;
use crate::metrics::open_metrics::text;
use crate::net::call_state::CallState;
use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step, lost_track};
use crate::view::holder::LeaderFound;
use crate::view::status::Selection;
use crate::view::visible_table::{Shown, competing, held_item, mode_of};
use crate::waiters::waiting::Asked;
use crate::wording::{self, ABOUT_TO_BE_GRANTED, bad, pid_of, time};
use canal_core::{
    Blocker, By, CycleStep, FrameId, HoldState, Key, Mode, Request, RequestId, Table, UnixMillis,
    WaiterState,
};
use canal_protocol::{
    BLOCKERS_SHOWN_MAX, BlockerInfo, CycleStepInfo, Failure, LeaderQuery, Metrics, PartyInfo,
    Status, StatusQuery, WaitInfo, Waits, WhyQuery,
};

/// The most keys in one reply to a client that completes a command line.
const NAMES_MAX: usize = 10_000;

/// The most waiting requests that a report lists with their blockers.
const WAITS_SHOWN_MAX: usize = 1000;

/// The approximate maximum number of blockers of waiting requests that are examined for such a
/// report.
const BLOCKERS_LOOKED_AT_MAX: usize = 100_000;

impl Server {
    /// Builds a status. `left_out` is the number of keys that `keys` does not contain.
    pub(crate) fn status_of<K>(&self, viewer: u32, keys: K, left_out: u64) -> Status<K> {
        let mut daemon = self.about.clone();
        daemon.notes.extend(logging::note());
        daemon.notes.extend(self.observe.history.queue.notes());
        daemon.notes.extend(self.leases.note());
        // The notes name programs and addresses, and otherwise only the configuration contains
        // those.
        if self.is_operator(viewer) {
            daemon.notes.extend(self.observe.notes_for_operators());
        }
        let (cluster, ledger) = (self.decide.cluster(), self.decide.ledger());
        Status {
            daemon,
            keys,
            left_out,
            engine: cluster.map(|cluster| cluster.shown(ledger)),
            hosts: cluster.map_or_else(Vec::new, |cluster| cluster.hosts_shown(ledger)),
        }
    }

    pub(crate) fn status(&mut self, caller: &Caller, query: &StatusQuery) -> Result {
        let peer = caller.peer;
        if let Some(max) = query.names_max {
            let max = usize::try_from(max).unwrap_or(usize::MAX).min(NAMES_MAX);
            let keys = self.shown(peer.uid).names(query.key.as_deref().unwrap_or(""), max);
            return Ok(Step::reply(&self.status_of(peer.uid, keys, 0)));
        }
        let selection = Selection {
            key: query.key.as_deref().map(items::key).transpose()?,
            uid: if query.mine { Some(peer.uid) } else { query.uid },
            session: query.session.as_deref().map(items::session).transpose()?,
            waiting: query.waiting,
            full: query.full,
        };
        let report = self.status_report(caller.id, peer.uid, &selection, caller.follows);
        Ok(self.begin_watch(caller, report, CallState::Watches(selection)))
    }

    /// Answers a call, or lets it watch its subject if the client wants that.
    fn begin_watch(&mut self, by: &Caller, report: Option<Vec<u8>>, watch: CallState) -> Step {
        let Some(conn) = self.conns.get(by.id).filter(|_| by.follows == Follows::More) else {
            return Step::Answer(Answer::report(report));
        };
        conn.progress_written(report);
        Step::Wait(watch)
    }

    /// Sends the state of the locks that a client watches.
    pub(crate) fn show_status(&mut self, id: ConnId, viewer: u32, selection: Selection) {
        let report = self.status_report(id, viewer, &selection, Follows::More);
        if let Some(conn) = self.conns.get(id) {
            conn.progress_written(report);
        }
        self.conns.set_state(id, CallState::Watches(selection));
    }

    /// The state of the selected locks. Empty for a client that wants no reply, to save the work.
    fn status_report(
        &mut self,
        id: ConnId,
        viewer: u32,
        selection: &Selection,
        follows: Follows,
    ) -> Option<Vec<u8>> {
        if self.decide.table().waiters().len() > 0 {
            self.observe.history.learn();
        }
        if self.conns.peek(id).is_none_or(|conn| conn.is_oneway()) {
            return Some(Vec::new());
        }
        let (shown, left_out) = self.shown(viewer).keys(selection);
        written(&self.status_of(viewer, shown, left_out), follows)
    }
}

/// Finds the leader of a key.
impl Server {
    pub(crate) fn leader(&mut self, caller: &Caller, query: &LeaderQuery) -> Result {
        let key = items::key(&*query.key)?;
        let found = self.find_leader(&key)?;
        let (reply, news) = (self.shown(caller.peer.uid).leader_reply(found, &key), found.news());
        let report = written(&reply, caller.follows);
        Ok(self.begin_watch(caller, report, CallState::WatchesLeader(key, news)))
    }

    /// The leader of a key, as far as this host knows.
    ///
    /// # Errors
    /// The key can have several holders at once.
    pub(crate) fn find_leader(&self, key: &Key) -> Result<LeaderFound<'_>> {
        // While this host reads the log again from its start, the table shows past leaders.
        if !self.decide.is_member() {
            return Ok(LeaderFound { hold: None, stale: true });
        }
        self.shown(self.about.uid).leader(key, self.decide.cluster().is_some_and(Cluster::is_stale))
    }
}

impl Server {
    /// All figures, as text.
    pub(crate) fn metrics(&mut self) -> Step {
        let snapshot = self.observe.snapshot(&self.decide, self.conns.len());
        Step::reply(&Metrics { text: text(&snapshot) })
    }
}

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
            let frame = items::session(session)?;
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
    fn blockers(&mut self, table: &Table, request: RequestId) -> Option<Vec<Blocker>> {
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
        let waits = self
            .table
            .waiters()
            .filter_map(|waiter| self.wait(waiter, &budget.blockers(self.table, waiter.id)?));
        Waits { waits: waits.collect(), left_out: budget.left_out, ..Waits::default() }
    }

    /// The requests that wait in these frames and the frames that they enclose, then the requests
    /// that block them and wait themselves, and so on to the end.
    fn chain(&self, frames: &[FrameId]) -> Waits {
        let inside = waiters_inside(self.table);
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
        let mut rest: Vec<(&WaiterState, Vec<Blocker>)> = rest.collect();
        let mut found = Vec::new();
        loop {
            let waits = |(_, blockers): &mut (&WaiterState, Vec<Blocker>)| {
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

    fn wait(&self, waiter: &WaiterState, blockers: &[Blocker]) -> Option<WaitInfo> {
        let asked = &waiter.request;
        let (key, mode, reason) = if let Some((why, mode, clause)) = self.why(waiter.id) {
            (why.key, mode, clause)
        } else {
            let item = asked.items.first()?;
            (item.key.clone(), item.ask.mode(), ABOUT_TO_BE_GRANTED.to_owned())
        };
        let shown = blockers.iter().filter_map(|blocker| self.blocker(asked, blocker));
        Some(WaitInfo {
            waiter: self.party(asked, self.table.session(waiter.frame)),
            key: key.to_string(),
            mode,
            since: time(waiter.since),
            reason,
            blockers: shown.take(BLOCKERS_SHOWN_MAX).collect(),
            blockers_left_out: blockers.len().saturating_sub(BLOCKERS_SHOWN_MAX) as u64,
        })
    }

    fn blocker(&self, asked: &Request, blocker: &Blocker) -> Option<BlockerInfo> {
        let (key, mode) = (&blocker.key, mode_of(asked, blocker.item)?);
        match blocker.by {
            By::Hold(token, _) => Some(self.holding(self.table.hold(token)?, key, mode)),
            By::Waiter(request, _) => {
                Some(self.wanting(&Asked::of(self.table, request)?, key, mode))
            }
        }
    }

    /// A hold that blocks a request for a key.
    fn holding(&self, hold: &HoldState, key: &Key, mode: Mode) -> BlockerInfo {
        let (key, mode) = held_item(&hold.items, key, mode).unwrap_or((key, mode));
        let party = self.party(&hold.asked, self.table.session(hold.frame));
        BlockerInfo { party, key: key.to_string(), mode, holds: true, since: time(hold.since) }
    }

    /// A request that goes before another request for a key.
    fn wanting(&self, asked: &Asked, key: &Key, mode: Mode) -> BlockerInfo {
        let items = asked.request.items.iter().map(|item| (&item.key, item.ask.mode()));
        // It may be behind the other request only because of its place in the queue of the key.
        let item = competing(items.clone(), key, mode);
        let item = item.or_else(|| items.clone().find(|(other, _)| *other == key));
        let (key, mode) = item.unwrap_or((key, mode));
        let party = self.party(&asked.request, asked.session);
        BlockerInfo { party, key: key.to_string(), mode, holds: false, since: time(asked.since) }
    }

    pub(crate) fn party(&self, asked: &Request, session: FrameId) -> PartyInfo {
        PartyInfo {
            pid: pid_of(&asked.owner),
            uid: asked.uid,
            command: self.command(asked.uid, &asked.command.0),
            session: format!("s{session}"),
            lease: asked.ttl_ms.is_some(),
            run: asked.over_nodes.as_deref().map(|over| over.run),
        }
    }

    /// The party of a frame whose request is not known.
    fn party_of(&self, frame: FrameId) -> PartyInfo {
        let state = self.table.frame(frame);
        let uid = state.map_or(0, |state| state.uid);
        let hold = self.table.holds_in(frame).next();
        PartyInfo {
            pid: state.map_or(0, |state| pid_of(&state.owner)),
            uid,
            command: hold.and_then(|hold| self.command(uid, &hold.asked.command.0)),
            session: self.session(frame),
            lease: state.is_some_and(|state| state.lease.is_some()),
            run: hold.and_then(|hold| Some(hold.asked.over_nodes.as_deref()?.run)),
        }
    }
}

/// The waiting requests of each frame and of the frames that it encloses.
fn waiters_inside(table: &Table) -> BTreeMap<FrameId, Vec<RequestId>> {
    let mut inside: BTreeMap<FrameId, Vec<RequestId>> = BTreeMap::new();
    for waiter in table.waiters() {
        let mut frame = Some(waiter.frame);
        while let Some(id) = frame {
            inside.entry(id).or_default().push(waiter.id);
            frame = table.frame(id).and_then(|state| state.parent);
        }
    }
    inside
}

impl Server {
    /// The failure of a request that was chosen to end a deadlock, as a user may see it. `refused`
    /// is that request: the table no longer contains it.
    pub(crate) fn deadlock(&self, viewer: u32, cycle: &[CycleStep], refused: &Asked) -> Failure {
        let Some((first, last)) = cycle.first().zip(cycle.last()) else {
            return lost_track();
        };
        // The frame of the first request may no longer exist. The last step waits for a frame of
        // the same session, and that frame exists.
        let shown = self.shown(viewer);
        let session = shown.table.session(last.by.frame());
        // The request, whether it still waits, was granted, or was refused in this turn.
        let asked = |request: RequestId| match self.waiters.get(request) {
            _ if request == first.request => Some(Asked { session, ..refused.clone() }),
            Some(waiter) => Some(waiter.asked.clone()),
            None => Asked::of(shown.table, request),
        };
        let steps = cycle.iter().map(|step| {
            let waiter = asked(step.request);
            let mode = waiter.as_ref().and_then(|asked| mode_of(&asked.request, step.item));
            let mode = mode.unwrap_or(Mode::Counted);
            let blocker = match step.by {
                By::Hold(token, _) => {
                    shown.table.hold(token).map(|hold| shown.holding(hold, &step.key, mode))
                }
                By::Waiter(request, _) => {
                    asked(request).map(|asked| shown.wanting(&asked, &step.key, mode))
                }
            };
            CycleStepInfo {
                waiter: match waiter {
                    Some(asked) => shown.party(&asked.request, asked.session),
                    None => shown.party_of(step.frame),
                },
                key: step.key.to_string(),
                mode,
                // It may have ended in this turn.
                blocker: blocker.unwrap_or_else(|| BlockerInfo {
                    party: shown.party_of(step.by.frame()),
                    key: step.key.to_string(),
                    mode,
                    holds: matches!(step.by, By::Hold(..)),
                    since: time(UnixMillis(0)),
                }),
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
