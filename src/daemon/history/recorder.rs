//! Follows what the table decides, and makes a record of each request of this host that has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::core::{
    CycleStep, FrameId, HostId, Outcome, Owner, Refusal, Request, RequestId, Table, Tag, Token,
    UnixMillis, Withdrawal,
};
use crate::daemon::calls::completion::Applied;
use crate::daemon::history::cause::Cause;
use crate::daemon::history::exits::Exits;
use crate::daemon::history::open::{Open, Unseen};
use crate::daemon::history::queue::{Answer, Noted, Question, Queue};
use crate::daemon::history::raw::Raw;
use crate::daemon::history::slots::OwnSlots;
use crate::daemon::history::writer::{self, Files};
use crate::daemon::hooks::section::On;
use crate::daemon::metrics::counters::{Counters, Ended};
use crate::daemon::net::conn_id::ConnId;
use crate::daemon::view::text::pid_of;
use crate::history::{Checkpoint, Ending, Reason, Record, RingStep, Summary};
use crate::sys::clock;
use crate::sys::pidfd::Pidfd;

/// A change of what is open is noted within this time.
const NOTED_WITHIN: Duration = Duration::from_secs(30);

/// That the daemon still runs is noted at least this often, while anything is open.
const NOTED_AT_LEAST_EVERY: Duration = Duration::from_secs(3_600);

/// At most this many open requests are noted, holds before waiters.
const NOTED_MAX: usize = 10_000;

/// The history of this daemon, what it counts, and what hooks are told of; nothing before it is set up.
#[derive(Debug, Default)]
pub(crate) struct History(Option<Box<Recorder>>);

#[derive(Debug)]
struct Recorder {
    /// The requests of this host that wait or hold something.
    open: BTreeMap<RequestId, Open>,
    /// What ended in this turn.
    ended: Vec<Raw>,
    exits: Exits,
    /// Frames whose process ended while no daemon ran, with the last time at which it is known to have
    /// lived.
    unseen: BTreeMap<FrameId, u64>,
    /// Waiters whose time is over. Over an engine their withdrawal does not say so.
    timed_out: BTreeSet<RequestId>,
    /// Connections that wait for an answer.
    asking: BTreeSet<ConnId>,
    /// What was granted and what ended, for `canal metrics`.
    counters: Counters,
    queue: Arc<Queue>,
    /// `None` if what ended is only counted.
    files: Option<Files>,
    /// How long keys were held lately, as far as it was asked for.
    summary: Option<Arc<Summary>>,
    /// What hooks are told of, until they are; `None` if none is told of what ends.
    notable: Option<Vec<Raw>>,
    /// The name of this host, if others share the table.
    host: Option<Arc<str>>,
    /// `None` until there is something to do.
    thread: Option<JoinHandle<()>>,
    /// When what is open is noted.
    note_due: Option<Instant>,
    /// The time between the last two notes.
    note_pause: Duration,
    /// Whether what is open is not what was noted last.
    is_changed: bool,
    /// Whether anything is noted as open.
    is_noted: bool,
    /// What the daemon of before left over an engine, until this host is a member.
    left: Option<Left>,
}

/// What the daemon of before left over an engine.
#[derive(Debug)]
struct Left {
    /// What was open.
    records: Vec<Record>,
    /// Until when it is known to have run.
    known_ms: u64,
}

impl History {
    /// A history in these files, which are opened when they are first needed. Without files, what ended
    /// is only counted. `host` is the name of this host, if others share the table.
    pub(crate) fn new(files: Option<Files>, host: Option<&str>) -> Self {
        Self(Some(Box::new(Recorder {
            open: BTreeMap::new(),
            ended: Vec::new(),
            exits: Exits::default(),
            unseen: BTreeMap::new(),
            timed_out: BTreeSet::new(),
            asking: BTreeSet::new(),
            counters: Counters::since(clock::unix_ms()),
            queue: Arc::default(),
            files,
            summary: None,
            notable: None,
            host: host.map(Arc::from),
            thread: None,
            note_due: None,
            note_pause: NOTED_WITHIN,
            is_changed: false,
            is_noted: false,
            left: None,
        })))
    }

    /// Whether what ends is kept.
    pub(crate) fn is_on(&self) -> bool {
        self.0.as_ref().is_some_and(|recorder| recorder.files.is_some())
    }

    /// Whether what ends is followed.
    pub(crate) fn follows(&self) -> bool {
        self.0.is_some()
    }

    /// Notes whether hooks `are_told` of what ends. `table` and `here` are what is followed then, if
    /// nothing is yet.
    pub(crate) fn tell_hooks(
        &mut self,
        are_told: bool,
        host: Option<&str>,
        table: &Table,
        here: HostId,
    ) {
        if are_told && self.0.is_none() {
            *self = Self::new(None, host);
            self.follow(table, here);
        }
        if let Some(recorder) = &mut self.0 {
            let before = recorder.notable.take();
            recorder.notable = are_told.then(|| before.unwrap_or_default());
        }
    }

    /// What hooks are told of, since the last call.
    pub(crate) fn take_notable(&mut self) -> Vec<Raw> {
        let notable = self.0.as_mut().and_then(|recorder| recorder.notable.as_mut());
        notable.map_or_else(Vec::new, std::mem::take)
    }

    /// What was counted so far, with this turn; `None` before the history is set up.
    pub(crate) fn counters(&mut self) -> Option<&mut Counters> {
        self.hand_over();
        self.0.as_mut().map(|recorder| &mut recorder.counters)
    }

    /// Takes in what an entry of the log decided. `cause` is what the entry says.
    pub(crate) fn take_in(
        &mut self,
        cause: &Cause,
        applied: &Applied,
        table: &Table,
        here: HostId,
    ) {
        if let Some(recorder) = &mut self.0 {
            let asked = RequestId(applied.revision.0);
            for outcome in &applied.outcomes {
                recorder.take_in(cause, asked, outcome, table, here);
            }
            recorder.is_changed |= !applied.outcomes.is_empty();
            if let Cause::End(frame) = cause {
                recorder.note_end(*frame, table);
            }
        }
    }

    /// Takes over a table that replaces another one, or another part of it. What is not in it has
    /// ended unseen.
    pub(crate) fn follow(&mut self, table: &Table, here: HostId) {
        if let Some(recorder) = &mut self.0 {
            recorder.follow(table, here);
        }
    }

    /// Has recorded what ended while no daemon ran: what the journal tells, and what was noted as open
    /// before the machine went down. `shares`: an engine tells later what is still held.
    pub(crate) fn take_in_unseen(&mut self, unseen: &Unseen, shares: bool) {
        let Some(recorder) = &mut self.0 else { return };
        let Some(files) = &recorder.files else { return };
        let left = Checkpoint::read(&files.dir).unwrap_or_default();
        let is_of_this_boot = left.boot_id == files.boot_id;
        recorder.is_noted = !left.records.is_empty();
        let known_ms = unseen.known_ms.max(left.known_ms).min(clock::unix_ms());
        let mut records = unseen.records(known_ms, recorder.host.as_ref());
        if !is_of_this_boot {
            // Leases outlive the machine.
            let void = left.records.into_iter().filter(|it| it.pid != 0 || it.held_ms.is_none());
            records.extend(void.map(|it| Record { ending: Ending::Reboot, ..it }));
        } else if shares {
            recorder.left = Some(Left { records: left.records, known_ms });
        }
        recorder.recall(records);
        // The file must not name any longer what was recorded.
        recorder.is_changed = recorder.is_noted;
    }

    /// Has recorded what the daemon of before held over an engine and the table no longer has. Called
    /// when this host has become a member. `ending` is how that ended.
    pub(crate) fn take_in_left(&mut self, table: &Table, ending: &Ending) {
        if let Some(recorder) = &mut self.0
            && let Some(mut left) = recorder.left.take()
        {
            left.records.retain(|record| {
                let was_held = record.held_ms.is_some() && record.pid != 0;
                was_held && table.hold(Token(record.token)).is_none()
            });
            left.records.iter_mut().for_each(|record| record.ending.clone_from(ending));
            recorder.recall(left.records);
        }
    }

    /// Notes that the process of a frame ended, perhaps while no daemon ran.
    pub(crate) fn ends_unseen(&mut self, frame: FrameId) {
        if let Some(recorder) = &mut self.0
            && let Some(left) = &recorder.left
        {
            recorder.unseen.insert(frame, left.known_ms);
        }
    }

    /// When what is open is to be noted.
    pub(crate) fn note_due(&self) -> Option<Instant> {
        self.0.as_ref()?.note_due
    }

    /// Has what is open noted, if that is due. Called after the answers are written.
    pub(crate) fn note_open(&mut self, now: Instant) {
        let Some(recorder) = &mut self.0 else { return };
        if recorder.files.is_none() || recorder.left.is_some() {
            return;
        }
        if recorder.note_due.take_if(|due| *due <= now).is_some() {
            recorder.note_open();
            if !recorder.open.is_empty() {
                // A daemon in which nothing happens is to sleep. What is held for long may be known for
                // half of that time only.
                recorder.note_pause = (recorder.note_pause * 2).min(NOTED_AT_LEAST_EVERY);
                recorder.note_due = Some(now + recorder.note_pause);
            }
        }
        if recorder.open.is_empty() && !recorder.is_noted {
            recorder.note_due = None;
        } else if recorder.is_changed {
            let soon = now + NOTED_WITHIN;
            recorder.note_pause = NOTED_WITHIN;
            recorder.note_due = Some(recorder.note_due.map_or(soon, |due| due.min(soon)));
        }
    }

    /// Notes that the time of a waiter is over.
    pub(crate) fn times_out(&mut self, request: RequestId) {
        if let Some(recorder) = &mut self.0 {
            recorder.timed_out.insert(request);
        }
    }

    /// Forgets the refusal of a request that is asked again.
    pub(crate) fn take_back(&mut self, tag: Tag) {
        if let Some(recorder) = &mut self.0
            && let Some(at) = recorder.ended.iter().rposition(|raw| raw.asked.tag == tag)
        {
            recorder.ended.remove(at);
            if let Some(notable) = &mut recorder.notable {
                notable.retain(|raw| raw.asked.tag != tag);
            }
        }
    }

    /// Keeps the process of a frame that has ended, if there is room among `descriptors`: the kernel
    /// may tell how it ended.
    pub(crate) fn keep_exit(&mut self, frame: FrameId, pidfd: Pidfd, descriptors: usize) {
        if let Some(recorder) = &mut self.0
            && recorder.files.is_some()
        {
            recorder.exits.keep(frame, pidfd, descriptors);
        }
    }

    /// Counts what ended, and hands it to the thread that writes it. Called after the answers are
    /// written.
    pub(crate) fn hand_over(&mut self) {
        if let Some(recorder) = &mut self.0
            && !recorder.ended.is_empty()
        {
            recorder.hand_over();
        }
    }

    /// Looks something up for a connection. Returns whether it is looked for; it is not where the
    /// history is off or has no thread.
    pub(crate) fn search(&mut self, id: ConnId, question: Question) -> bool {
        let Some(recorder) = self.0.as_mut() else { return false };
        // What ended in this turn is found, too.
        if !recorder.starts() {
            return false;
        }
        recorder.hand_over();
        recorder.asking.insert(id);
        recorder.queue.search(id, question);
        true
    }

    /// Whether this connection waits for an answer.
    pub(crate) fn is_asked_by(&self, id: ConnId) -> bool {
        self.0.as_ref().is_some_and(|recorder| recorder.asking.contains(&id))
    }

    /// What was found since the last call.
    pub(crate) fn take_found(&mut self) -> Vec<(ConnId, Answer)> {
        let Some(recorder) = &mut self.0 else { return Vec::new() };
        if !recorder.queue.has_found() {
            return Vec::new();
        }
        let found = recorder.queue.take_found();
        for (id, _) in &found {
            recorder.asking.remove(id);
        }
        found
    }

    /// What wakes the daemon when something was found.
    pub(crate) fn wake_by(&self, waker: Waker) {
        if let Some(recorder) = &self.0 {
            recorder.queue.wake_by(waker);
        }
    }

    /// Finds out how long keys were held lately. Nothing is known at first: the files are read by
    /// their thread.
    pub(crate) fn learn(&mut self) {
        if let Some(recorder) = &mut self.0
            && recorder.starts()
        {
            recorder.summary = recorder.queue.summary();
        }
    }

    /// How long keys were held lately, as of the last [`Self::learn`].
    pub(crate) fn summary(&self) -> Option<&Summary> {
        self.0.as_ref()?.summary.as_deref()
    }

    /// How many records were dropped since the daemon started.
    pub(crate) fn dropped(&self) -> u64 {
        self.0.as_ref().map_or(0, |recorder| recorder.queue.dropped())
    }

    /// How many bytes the files have, if that is known.
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.0.as_ref().and_then(|recorder| recorder.queue.bytes())
    }

    /// What an operator should know.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.0.as_ref().map_or_else(Vec::new, |recorder| recorder.queue.notes())
    }

    /// Writes what is left. Called when the daemon ends.
    pub(crate) fn close(&mut self) {
        self.hand_over();
        if let Some(recorder) = &mut self.0
            && recorder.files.is_some()
            && recorder.left.is_none()
        {
            recorder.note_open();
        }
        if let Some(recorder) = &mut self.0
            && let Some(thread) = recorder.thread.take()
        {
            recorder.queue.close();
            if thread.join().is_err() {
                tracing::error!("the thread of the history has failed");
            }
        }
    }
}

impl Recorder {
    /// Has these records written, but for those that are written already.
    fn recall(&mut self, records: Vec<Record>) {
        if !records.is_empty() && self.starts() {
            self.queue.recall(records);
        }
    }

    /// Has noted what is open, if anything is or was.
    fn note_open(&mut self) {
        if !self.is_noted && self.open.is_empty() || !self.starts() {
            self.is_changed = false;
            return;
        }
        let at_ms = clock::unix_ms();
        let is_changed = std::mem::take(&mut self.is_changed);
        let open = is_changed.then(|| {
            let (held, waiting): (Vec<_>, Vec<_>) =
                self.open.values().partition(|open| open.granted.is_some());
            let noted = held.into_iter().chain(waiting).take(NOTED_MAX);
            let raw = |open: &Open| {
                let raw = open.ended_at(at_ms, Ending::Reboot);
                Raw { host: self.host.clone(), ..raw }
            };
            noted.map(raw).collect()
        });
        self.is_noted = !self.open.is_empty();
        self.queue.note_open(Noted { at_ms, open });
    }

    fn hand_over(&mut self) {
        // What no daemon saw end was begun before this one counted.
        for raw in self.ended.iter().filter(|raw| !raw.at_least) {
            let Raw { asked, ending, ended_ms: at_ms, held_ms, .. } = raw;
            self.counters.ended(Ended { asked, ending, at_ms: *at_ms, held_ms: *held_ms });
        }
        if self.files.is_none() {
            self.ended.clear();
        } else if self.starts() {
            self.queue.hand_over(&mut self.ended);
        } else {
            self.queue.count_dropped(self.ended.len());
            self.ended.clear();
        }
    }

    /// Starts the thread if it does not run. Returns whether it runs.
    fn starts(&mut self) -> bool {
        if self.thread.is_none()
            && let Some(files) = &self.files
        {
            match writer::start(Arc::clone(&self.queue), files.clone()) {
                Ok(thread) => self.thread = Some(thread),
                Err(error) => tracing::warn!(%error, "the history has no thread"),
            }
        }
        self.thread.is_some()
    }

    fn take_in(
        &mut self,
        cause: &Cause,
        asked: RequestId,
        outcome: &Outcome,
        table: &Table,
        here: HostId,
    ) {
        match outcome {
            Outcome::Queued { request, .. } => {
                if let Some(waiter) = table.waiter(*request)
                    && is_of(table, waiter.frame, here)
                {
                    self.open.insert(*request, Open::of_waiter(table, waiter));
                }
            }
            Outcome::Granted(granted) => {
                if let Some(open) = self.open.get_mut(&granted.request) {
                    let since = table.hold(granted.token).map(|hold| hold.since);
                    let since = since.unwrap_or(open.asked_at);
                    open.granted = Some((granted.token, since));
                    open.slots = OwnSlots::of(&granted.items);
                    self.counters.granted(&open.asked, since.0, open.waited_ms(since));
                } else if let Some(hold) = table.hold(granted.token)
                    && is_of(table, hold.frame, here)
                {
                    let slots = OwnSlots::of(&granted.items);
                    let open = Open { slots, ..Open::of_hold(table, hold) };
                    self.counters.granted(&open.asked, hold.since.0, open.waited_ms(hold.since));
                    self.open.insert(granted.request, open);
                }
            }
            Outcome::ConfirmedAt { request, token, .. } => {
                if let Some(open) = self.open.get_mut(request)
                    && let Some((held, _)) = &mut open.granted
                {
                    *held = *token;
                }
            }
            Outcome::Requeued { request, .. } => {
                if let Some(open) = self.open.get_mut(request) {
                    open.granted = None;
                }
            }
            Outcome::Refused { request, why } => {
                let at_once = match cause {
                    Cause::Request(of) if *request == asked && of.host == here => Some(of),
                    _ => None,
                };
                let open = self.open.remove(request);
                let open = open.or_else(|| at_once.map(|of| refused_at_once(of, table, here)));
                if let Some(open) = open
                    && let Some(ending) = refused(table, &open, why)
                {
                    self.add(open, ending);
                }
            }
            Outcome::Withdrawn { request } => {
                if let Some(open) = self.open.remove(request)
                    && let Some(ending) = self.withdrawn(cause, *request)
                {
                    self.add(open, ending);
                }
            }
            Outcome::Released { request, whole: true, .. } => {
                if let Some(open) = self.open.remove(request) {
                    let ending = self.released(cause, &open, *request);
                    self.add(open, ending);
                }
            }
            Outcome::FrameGone { frame } => {
                self.exits.forget(*frame);
                self.unseen.remove(frame);
            }
            Outcome::Renewed { frame, .. } | Outcome::LeaseMoved { frame, .. } => {
                self.follow_lease(*frame, table, here);
            }
            Outcome::Released { whole: false, .. }
            | Outcome::NotHeld
            | Outcome::LeaseGone
            | Outcome::NotConfirmed { .. }
            | Outcome::Barrier { .. }
            | Outcome::ResizeRefused { .. }
            | Outcome::ResizeRefusedOverNodes
            | Outcome::Resized { .. }
            | Outcome::PauseStored { .. } => {}
        }
    }

    /// How a waiting request ended; `None` if it is asked for again.
    fn withdrawn(&mut self, cause: &Cause, request: RequestId) -> Option<Ending> {
        let timed_out = self.timed_out.remove(&request);
        match cause {
            Cause::End(_) => Some(Ending::Ended),
            Cause::Withdraw(Withdrawal::Timeout) => Some(Ending::Timeout),
            _ if timed_out => Some(Ending::Timeout),
            // The next incarnation of the host asks for it again.
            Cause::HostGone => None,
            _ => Some(Ending::Withdrawn),
        }
    }

    /// How a hold ended.
    fn released(&mut self, cause: &Cause, open: &Open, request: RequestId) -> Ending {
        let timed_out = self.timed_out.remove(&request);
        match cause {
            Cause::Forced(by) => Ending::Forced { by: *by },
            // The daemon releases what descendants kept when the last one has ended.
            Cause::Release if open.owner_ended => Ending::Ended,
            Cause::Release => Ending::Released,
            Cause::End(_) => Ending::Ended,
            Cause::Expire => Ending::Expired,
            Cause::HostGone => Ending::Lost,
            Cause::Withdraw(_) if timed_out => Ending::Timeout,
            Cause::Withdraw(Withdrawal::Timeout) => Ending::Timeout,
            // A grant that was taken back before its client was told.
            Cause::Withdraw(_) | Cause::Request(_) | Cause::Other => Ending::Withdrawn,
        }
    }

    /// Makes a record of what ended now.
    fn add(&mut self, open: Open, ending: Ending) {
        let is_untold = matches!(ending, Ending::Withdrawn | Ending::Timeout);
        let mut open = open;
        open.granted.take_if(|_| is_untold);
        let seen_until = match ending {
            Ending::Ended => self.unseen.get(&open.frame).copied(),
            _ => None,
        };
        let begun_ms = open.granted.map_or(open.asked_at, |(_, since)| since).0;
        let ended_ms = seen_until.map_or_else(clock::unix_ms, |known_ms| known_ms.max(begun_ms));
        let exit = match ending {
            Ending::Ended => self.exits.get(open.frame),
            _ => None,
        };
        let raw = open.ended_at(ended_ms, ending);
        let (host, at_least) = (self.host.clone(), seen_until.is_some());
        let raw = Raw { host, exit, at_least, ..raw };
        if let Some(notable) = &mut self.notable
            && On::of(&raw.ending).is_some()
        {
            notable.push(raw.clone());
        }
        self.ended.push(raw);
    }

    /// Notes for the holds that are kept for descendants that their owner has ended.
    fn note_end(&mut self, frame: FrameId, table: &Table) {
        for hold in table.holds_in(frame) {
            if let Some(open) = self.open.get_mut(&hold.request) {
                open.owner_ended = true;
            }
        }
    }

    /// Follows a lease to this host, or from it to another one.
    fn follow_lease(&mut self, frame: FrameId, table: &Table, here: HostId) {
        let is_ours = is_of(table, frame, here);
        for hold in table.holds_in(frame) {
            if !is_ours {
                self.open.remove(&hold.request);
            } else {
                self.open.entry(hold.request).or_insert_with(|| Open::of_hold(table, hold));
            }
        }
    }

    fn follow(&mut self, table: &Table, here: HostId) {
        let lives = |id: &RequestId| table.waiter(*id).is_some() || table.hold_of(*id).is_some();
        let gone: Vec<RequestId> = self.open.keys().filter(|id| !lives(id)).copied().collect();
        for request in gone {
            // A request that waited is asked for again.
            if let Some(open) = self.open.remove(&request).filter(|open| open.granted.is_some()) {
                self.add(open, Ending::Lost);
            }
        }
        self.timed_out.retain(|request| self.open.contains_key(request));
        self.exits.forget_all();
        self.is_changed = true;
        for waiter in table.waiters().filter(|waiter| is_of(table, waiter.frame, here)) {
            self.open.entry(waiter.id).or_insert_with(|| Open::of_waiter(table, waiter));
        }
        for hold in table.holds().filter(|hold| is_of(table, hold.frame, here)) {
            self.open.insert(hold.request, Open::of_hold(table, hold));
        }
    }
}

/// Whether this host looks after a frame.
pub(crate) fn is_of(table: &Table, frame: FrameId, here: HostId) -> bool {
    // The tokens of a build are no requests of anybody: the build has a record of its own.
    let is_token = |owner: &Owner| matches!(owner, Owner::Jobserver(_));
    table.frame(frame).is_some_and(|frame| frame.host == here && !is_token(&frame.owner))
}

/// A request that was refused when it was asked for. It may have a frame by an earlier one.
fn refused_at_once(asked: &Arc<Request>, table: &Table, here: HostId) -> Open {
    let frame = table.frame_of(here, &asked.owner).or(asked.parent);
    Open {
        asked: Arc::clone(asked),
        frame: frame.unwrap_or_default(),
        session: frame.map(|frame| table.session(frame)).unwrap_or_default(),
        asked_at: UnixMillis(clock::unix_ms()),
        granted: None,
        slots: OwnSlots::None,
        owner_ended: false,
    }
}

/// How a refusal is recorded; `None` if the request made no sense, or is asked for again.
fn refused(table: &Table, open: &Open, why: &Refusal) -> Option<Ending> {
    let mut ring = Vec::new();
    let reason = match why {
        Refusal::Full { .. } => Reason::Full,
        Refusal::Paused { .. } => Reason::Paused,
        Refusal::MaxWaiting { .. } => Reason::MaxWaiting,
        Refusal::OwnDeadlock { .. } => Reason::Deadlock,
        Refusal::Deadlock { cycle } => {
            ring.extend(cycle.iter().map(|step| ring_step(table, step)));
            // Its frame may be gone with it.
            if let Some(first) = ring.first_mut() {
                first.session = open.session.0;
                (first.uid, first.pid) = (open.asked.uid, pid_of(&open.asked.owner));
            }
            Reason::Deadlock
        }
        Refusal::TooLarge { .. } | Refusal::RequireTooLarge { .. } => Reason::TooLarge,
        Refusal::Kind { .. } | Refusal::OtherNodes { .. } => Reason::Mismatch,
        Refusal::Unsupported { .. }
        | Refusal::Invalid { .. }
        | Refusal::Duplicate
        | Refusal::Recovering => return None,
    };
    Some(Ending::Refused { reason, ring })
}

fn ring_step(table: &Table, step: &CycleStep) -> RingStep {
    let frame = table.frame(step.frame);
    RingStep {
        session: table.session(step.frame).0,
        uid: frame.map_or(0, |frame| frame.uid),
        pid: frame.map_or(0, |frame| pid_of(&frame.owner)),
        key: step.key.as_str().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{Change, ENTRY_VERSION, Entry, Owner, Release, Revision, Rules};
    use crate::daemon::calls::completion::Completion;
    use crate::history::Limits;

    /// A table and what is recorded of it. Each entry is a second after the one before it.
    struct Scene {
        table: Table,
        history: History,
    }

    const HERE: HostId = HostId(0);

    impl Scene {
        fn new() -> Self {
            let limits = Limits { keep_ms: 1, max_bytes: 1 };
            let files = Files { dir: "/nowhere".into(), limits, boot_id: String::new() };
            Self { table: Table::new(Rules::Current), history: History::new(Some(files), None) }
        }

        /// The same, with files in a directory.
        fn in_dir(dir: &std::path::Path) -> Self {
            let limits = Limits { keep_ms: u64::MAX, max_bytes: 1 << 20 };
            let files = Files { dir: dir.to_owned(), limits, boot_id: "this boot".to_owned() };
            Self { history: History::new(Some(files), None), ..Self::new() }
        }

        fn apply(&mut self, change: Change) -> Applied {
            let revision = Revision(self.table.revision().0 + 1);
            let at = UnixMillis(revision.0 * 1000);
            let entry = Entry { version: ENTRY_VERSION, at, change };
            let mut outcomes = Vec::new();
            self.table.apply(revision, &entry, &mut outcomes);
            let applied = Applied { revision, outcomes };
            let cause = Cause::of(&entry.change, &Completion::Nothing);
            self.history.take_in(&cause, &applied, &self.table, HERE);
            applied
        }

        /// A process asks for a key.
        fn ask(&mut self, pid: u32, key: &str, waits: bool) -> RequestId {
            let wait = if waits { r#"{"yes":{}}"# } else { r#""no""# };
            let text = format!(
                r#"{{"tag":"{pid:032x}","owner":{{"process":{{"pid":{pid},"started":2}}}},"uid":7,
                "command":"x","items":[{{"key":"{key}","ask":{{"counted":{{"count":1}}}}}}],
                "wait":{wait}}}"#
            );
            let request: Request = serde_json::from_str(&text).unwrap();
            let applied = self.apply(Change::Request(Arc::new(request)));
            RequestId(applied.revision.0)
        }

        fn frame(&self, pid: u32) -> FrameId {
            let is_it = |owner: &Owner| pid_of(owner) == pid;
            self.table.frames().find(|frame| is_it(&frame.owner)).unwrap().id
        }

        /// Process, ending, whether it held something, of each record.
        fn ended(&self) -> Vec<(u32, Ending, bool)> {
            let ended = self.history.0.iter().flat_map(|recorder| &recorder.ended);
            let told = |raw: &Raw| (pid_of(&raw.asked.owner), raw.ending.clone(), raw.held_ms);
            ended.map(told).map(|(pid, ending, held)| (pid, ending, held.is_some())).collect()
        }

        fn open(&self) -> usize {
            self.history.0.as_ref().unwrap().open.len()
        }
    }

    #[test]
    fn what_waits_and_holds_is_followed_to_its_end() {
        let mut scene = Scene::new();
        scene.ask(1, "a", true);
        scene.ask(2, "a", true);
        let third = scene.ask(3, "a", true);
        assert_eq!((scene.open(), scene.ended()), (3, Vec::new()));
        let frame = scene.frame(1);
        scene.apply(Change::End { frame });
        assert_eq!(scene.ended(), [(1, Ending::Ended, true)]);
        let token = scene.table.holds().next().unwrap().token;
        scene.apply(Change::Release(Release::Hold { token, forced: true }));
        assert_eq!(scene.ended()[1], (2, Ending::Forced { by: None }, true));
        // Over an engine a withdrawal does not say that the time was over.
        let fourth = scene.ask(4, "a", true);
        scene.history.times_out(fourth);
        scene.apply(Change::Withdraw { request: fourth, why: Withdrawal::Cancelled });
        assert_eq!(scene.ended()[2], (4, Ending::Timeout, false));
        scene.apply(Change::Release(Release::All { frame: scene.frame(3) }));
        assert_eq!(scene.ended()[3], (3, Ending::Released, true));
        scene.apply(Change::Withdraw { request: third, why: Withdrawal::Cancelled });
        assert_eq!((scene.open(), scene.ended().len()), (0, 4));
    }

    #[test]
    fn grants_and_ends_are_counted_whether_they_are_written_or_not() {
        let mut scene = Scene::new();
        scene.history = History::new(None, None);
        scene.ask(1, "a", true);
        scene.ask(2, "a", true);
        scene.ask(3, "a", false);
        scene.history.take_back(Tag(3));
        scene.ask(4, "a", false);
        scene.apply(Change::End { frame: scene.frame(1) });
        let counters = scene.history.counters().unwrap();
        let a = &counters.keys[&crate::core::Key::new("a").unwrap()];
        assert_eq!((a.grants, a.waits.sum_us), (2, 3_000_000));
        assert_eq!(a.refusals[0], 1, "one of the two was asked again");
        assert_eq!(a.holds.counts.iter().sum::<u64>(), 1);
        assert_eq!(scene.ended(), [], "nothing waits to be written");
    }

    #[test]
    fn a_refusal_is_recorded_unless_the_request_is_asked_again() {
        let mut scene = Scene::new();
        scene.ask(1, "a", true);
        let full = Ending::Refused { reason: Reason::Full, ring: Vec::new() };
        scene.ask(2, "a", false);
        scene.ask(3, "a", false);
        assert_eq!(scene.ended(), [(2, full.clone(), false), (3, full.clone(), false)]);
        scene.history.take_back(Tag(2));
        scene.history.take_back(Tag(9));
        assert_eq!(scene.ended(), [(3, full, false)]);
    }

    #[test]
    fn hooks_are_told_of_some_ends_also_where_nothing_is_kept() {
        let mut scene = Scene::new();
        scene.ask(1, "a", true);
        scene.history = History::default();
        let (table, here) = (scene.table.clone(), HERE);
        scene.history.tell_hooks(true, None, &table, here);
        assert!(scene.history.follows() && !scene.history.is_on());
        scene.ask(2, "a", false);
        let token = scene.table.holds().next().unwrap().token;
        scene.apply(Change::Release(Release::Hold { token, forced: true }));
        scene.ask(3, "a", true);
        scene.apply(Change::End { frame: scene.frame(3) });
        scene.ask(4, "a", true);
        scene.history.follow(&Table::new(Rules::Current), HERE);
        let told: Vec<_> =
            scene.history.take_notable().iter().map(|raw| On::of(&raw.ending)).collect();
        assert_eq!(told, [Some(On::ForcedRelease), Some(On::LostLease)]);
        assert!(scene.history.take_notable().is_empty());
        assert_eq!(scene.ended().len(), 4);
        scene.history.hand_over();
        assert_eq!(scene.ended().len(), 0);
        scene.history.tell_hooks(false, None, &table, here);
        scene.ask(5, "a", true);
        scene.apply(Change::End { frame: scene.frame(5) });
        assert!(scene.history.follows(), "what ends is still counted");
        assert!(scene.history.take_notable().is_empty());
    }

    #[test]
    fn what_is_not_in_the_table_that_comes_next_was_lost() {
        let mut scene = Scene::new();
        scene.ask(1, "a", true);
        scene.ask(2, "a", true);
        scene.ask(3, "b", true);
        let mut other = Scene::new();
        other.ask(3, "b", true);
        scene.history.follow(&other.table, HERE);
        // The waiter is asked for again, and 3 is another request there, which has number 1.
        assert_eq!(scene.ended(), [(3, Ending::Lost, true)]);
        assert_eq!(scene.open(), 1);
        scene.history.follow(&Table::new(Rules::Current), HERE);
        assert_eq!(scene.ended().len(), 2);
        assert_eq!(scene.open(), 0);
    }

    #[test]
    fn a_daemon_in_which_nothing_happens_notes_what_is_open_less_and_less_often() {
        let dir = tempfile::tempdir().unwrap();
        let mut scene = Scene::in_dir(dir.path());
        let mut now = Instant::now();
        scene.history.note_open(now);
        assert_eq!(scene.history.note_due(), None);
        scene.ask(1, "a", true);
        scene.history.note_open(now);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let due = scene.history.note_due().unwrap();
            pauses.push((due - now).as_secs());
            now = due;
            scene.history.note_open(now);
        }
        assert_eq!(pauses, [30, 60, 120, 240, 480, 960, 1_920, 3_600, 3_600]);
        scene.ask(2, "b", true);
        scene.history.note_open(now);
        assert_eq!(scene.history.note_due(), Some(now + NOTED_WITHIN));
        for which in [1, 2] {
            scene.apply(Change::End { frame: scene.frame(which) });
        }
        // That nothing is open any more is noted, too.
        now += NOTED_WITHIN;
        scene.history.note_open(now);
        scene.history.note_open(now);
        assert_eq!(scene.history.note_due(), None);
        scene.history.close();
    }

    #[test]
    fn what_was_left_over_an_engine_is_lost_if_the_table_has_it_no_longer() {
        let dir = tempfile::tempdir().unwrap();
        let mut scene = Scene::in_dir(dir.path());
        scene.ask(1, "a", true);
        scene.ask(2, "b", true);
        scene.ask(3, "b", true);
        scene.history.close();
        let table = scene.table.clone();
        // Of the next daemon of this boot.
        let mut next = Scene::in_dir(dir.path());
        next.history.take_in_unseen(&Unseen::default(), true);
        next.history.note_open(Instant::now());
        assert_eq!(next.history.note_due(), None, "what was left is not overwritten");
        next.table = table;
        next.apply(Change::End { frame: scene.frame(1) });
        next.history.follow(&next.table, HERE);
        let ended = next.frame(2);
        next.history.ends_unseen(ended);
        next.history.take_in_left(&next.table, &Ending::Lost);
        next.history.ends_unseen(next.frame(3));
        next.apply(Change::End { frame: ended });
        next.apply(Change::End { frame: next.frame(3) });
        let unseen = |raw: &Raw| (pid_of(&raw.asked.owner), raw.at_least);
        let ended: Vec<_> =
            next.history.0.iter().flat_map(|it| it.ended.iter().map(unseen)).collect();
        assert_eq!(ended, [(2, true), (3, false)]);
        next.history.close();
        let limits = Limits { keep_ms: u64::MAX, max_bytes: 1 << 20 };
        let (store, _) = crate::history::Store::open(dir.path(), limits).unwrap();
        let all = crate::history::Query { limit: 9, ..Default::default() };
        let mut search = crate::history::Search::new(all);
        while !search.step(&store) {}
        let found = search.found.records.iter().rev();
        let found: Vec<_> = found.map(|(_, it)| (it.pid, it.ending.clone(), it.at_least)).collect();
        let expected =
            [(1, Ending::Lost, true), (2, Ending::Ended, true), (3, Ending::Ended, false)];
        assert_eq!(found, expected);
        assert_eq!(Checkpoint::read(dir.path()), None, "nothing is open");
    }

    #[test]
    fn what_other_hosts_do_is_not_recorded() {
        let mut scene = Scene::new();
        scene.ask(1, "a", true);
        let elsewhere = History::new(None, Some("beta"));
        let mut other = Scene { table: scene.table.clone(), history: elsewhere };
        other.history.follow(&scene.table, HostId(9));
        assert_eq!(other.open(), 0);
    }
}
