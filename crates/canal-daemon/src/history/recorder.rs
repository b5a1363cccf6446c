//! Follows the decisions of the table, and records each request of this host that has ended.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::calls::call::ConnId;
use crate::calls::in_flight::Applied;
use crate::config::hooks::On;
use crate::history::followed_requests::{EndedRequest, Exits, Unseen};
use crate::history::writer::{self, Files, Queue, Search};
use crate::metrics::counters::Counters;
use crate::waiters::Open;
use crate::wording::pid_of;
use canal_core::{
    Change, FrameId, HostId, Outcome, Owner, Refusal, Release, RequestId, Revision, Table, Tag,
    Token, WaitFor,
};
use canal_history::{Batch, Checkpoint, Ending, Record, Summary};
use canal_protocol::{HistoryClient, HistoryStep};
use canal_sys::clock;
use canal_sys::peer::Credentials;
use canal_sys::pidfd::Pidfd;

/// A change of the open requests is noted within this time.
const NOTED_WITHIN: Duration = Duration::from_secs(30);

/// While a request is open, the daemon notes at least this often that it still runs.
const NOTED_AT_LEAST_EVERY: Duration = Duration::from_secs(3_600);

/// The most open requests that are noted, holds before waiters.
const NOTED_MAX: usize = 10_000;

/// Why a request is about to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It has waited for as long as it may. With an engine, its withdrawal does not carry this.
    TimedOut,
    /// Its client has reported that its output has no reader.
    Abandoned,
    /// It waits, and this client has had its process signalled.
    Killed { signal: u8, by: HistoryClient },
    /// Its supervisor has reported that it ends the command, which ran for too long.
    Overrun,
}

/// The history of this daemon, its counters, and the events for hooks.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The requests of this host that wait or hold something.
    open: BTreeMap<RequestId, Open>,
    /// The requests that ended in this turn.
    ended: Vec<EndedRequest>,
    /// The data on its way to the thread: records, and requests that ended with a process.
    batch: Batch,
    with_exit: Vec<EndedRequest>,
    exits: Exits,
    /// Frames whose process ended while no daemon ran, with the last time at which the process is
    /// known to have lived.
    unseen: BTreeMap<FrameId, u64>,
    /// Why requests are about to end, where the change that ends them does not show it.
    causes: BTreeMap<RequestId, Cause>,
    /// The counts of grants and ends, for `canal metrics`.
    counters: Counters,
    /// Connects it to the thread that writes and searches the records.
    pub queue: Arc<Queue>,
    /// `None` if requests that end are only counted.
    files: Option<Files>,
    /// How long keys were held recently, as of the last [`Self::learn`].
    pub summary: Option<Arc<Summary>>,
    /// The ended requests that the hooks have not received yet; `None` if no hook needs them.
    notable: Option<Vec<EndedRequest>>,
    /// The name of this host, if other hosts share the table.
    host: Option<Arc<str>>,
    /// `None` until the thread has work.
    thread: Option<JoinHandle<()>>,
    /// When to note the open requests.
    pub note_due: Option<Instant>,
    /// The time between the last two notes.
    note_pause: Duration,
    /// Whether the open requests have changed since the last note.
    is_changed: bool,
    /// Whether the last note contains an open request.
    is_noted: bool,
    /// The requests that the previous daemon left with an engine, until this host is a member.
    left: Option<Checkpoint>,
}

impl History {
    /// A history in these files, which are opened when they are first needed. Without files, ended
    /// requests are only counted. `host` is the name of this host, if other hosts share the table.
    pub(crate) fn new(files: Option<Files>, host: Option<&str>) -> Self {
        Self {
            counters: Counters::since(clock::unix_ms()),
            files,
            host: host.map(Arc::from),
            note_pause: NOTED_WITHIN,
            ..Self::default()
        }
    }

    /// Sets whether hooks `are_told` of ended requests.
    pub(crate) fn tell_hooks(&mut self, are_told: bool) {
        let before = self.notable.take();
        self.notable = are_told.then(|| before.unwrap_or_default());
    }

    /// Notes why a request is about to end. It may still be granted, or go on for other reasons.
    pub(crate) fn expect_end(&mut self, request: RequestId, cause: Cause) {
        self.causes.insert(request, cause);
    }

    /// Takes the ended requests for hooks since the last call.
    pub(crate) fn take_notable(&mut self) -> Vec<EndedRequest> {
        self.notable.as_mut().map_or_else(Vec::new, std::mem::take)
    }

    /// The counters, including this turn.
    pub(crate) fn counters(&mut self) -> &mut Counters {
        self.hand_over();
        &mut self.counters
    }

    /// Takes in the decisions of an entry of the log. `by`: the client that asked this daemon for
    /// the change.
    pub(crate) fn take_in(
        &mut self,
        change: &Change,
        by: Option<&Credentials>,
        applied: &Applied,
        table: &Table,
        here: HostId,
    ) {
        for outcome in &applied.outcomes {
            self.take_in_outcome((change, by), applied.revision, outcome, table, here);
        }
        self.is_changed |= !applied.outcomes.is_empty();
        if let Change::End { frame } = change {
            // The holds that are kept for descendants are those of an owner that has ended.
            for hold in table.holds_in(*frame) {
                let open = self.open.get_mut(&hold.request);
                if let Some(hold) = open.and_then(|open| open.hold.as_mut()) {
                    Arc::make_mut(hold).orphaned = true;
                }
            }
        }
    }

    /// Records the requests that ended while no daemon ran: those from the journal, and those noted
    /// as open before the machine went down. `shares`: an engine will later show which of them are
    /// still held.
    pub(crate) fn take_in_unseen(&mut self, unseen: &Unseen, shares: bool) {
        let Some(files) = &self.files else { return };
        let left = Checkpoint::read(&files.dir).unwrap_or_default();
        // A record without a boot id may be from any boot.
        let is_of_this_boot =
            left.boot_id == files.boot_id || left.boot_id.is_empty() || files.boot_id.is_empty();
        self.is_noted = !left.records.is_empty();
        let known_ms = unseen.known_ms.max(left.known_ms).min(clock::unix_ms());
        let mut records = unseen.records(known_ms, self.host.as_ref());
        if !is_of_this_boot {
            // Leases outlive the machine.
            for it in left.records.read().filter(|it| it.pid != 0 || it.held_ms.is_none()) {
                records.push(&Record { ending: Ending::Reboot, ..it });
            }
        } else if shares {
            self.left = Some(Checkpoint { known_ms, ..left });
        }
        self.recall(records);
        // The file must no longer name the requests that are recorded now.
        self.is_changed = self.is_noted;
    }

    /// Records the holds of the previous daemon with an engine that are no longer in the table.
    /// Called when this host has become a member. `ending` is how those holds ended.
    pub(crate) fn take_in_left(&mut self, table: &Table, ending: &Ending) {
        if let Some(left) = self.left.take() {
            let held = left.records.read().filter(|it| it.held_ms.is_some() && it.pid != 0);
            let gone = held.filter(|it| table.hold(Token(it.token)).is_none());
            self.recall(gone.map(|it| Record { ending: ending.clone(), ..it }).collect());
        }
    }

    /// Notes that the process of a frame has ended, perhaps while no daemon ran.
    pub(crate) fn ends_unseen(&mut self, frame: FrameId) {
        if let Some(left) = &self.left {
            self.unseen.insert(frame, left.known_ms);
        }
    }

    /// Notes the open requests if that is due. Called after the replies are written.
    pub(crate) fn note_open(&mut self, now: Instant) {
        if self.files.is_none() || self.left.is_some() {
            return;
        }
        if self.note_due.take_if(|due| *due <= now).is_some() {
            self.hand_over_open();
            if !self.open.is_empty() {
                // An idle daemon should sleep, so the pause doubles. After a crash of the machine,
                // a long hold may therefore be known for only half of its time.
                self.note_pause = (self.note_pause * 2).min(NOTED_AT_LEAST_EVERY);
                self.note_due = Some(now + self.note_pause);
            }
        }
        if self.open.is_empty() && !self.is_noted {
            self.note_due = None;
        } else if self.is_changed {
            let soon = now + NOTED_WITHIN;
            self.note_pause = NOTED_WITHIN;
            self.note_due = Some(self.note_due.map_or(soon, |due| due.min(soon)));
        }
    }

    /// Forgets the refusal of a request that is made again.
    pub(crate) fn take_back(&mut self, tag: Tag) {
        if let Some(at) = self.ended.iter().rposition(|ended| ended.open.asked.tag == tag) {
            self.ended.remove(at);
            if let Some(notable) = &mut self.notable {
                notable.retain(|ended| ended.open.asked.tag != tag);
            }
        }
    }

    /// Keeps the ended process of a frame, if there is room among `descriptors`. The kernel may
    /// have its exit status.
    pub(crate) fn keep_exit(&mut self, frame: FrameId, pidfd: Pidfd, descriptors: usize) {
        if self.files.is_some() {
            self.exits.keep(frame, pidfd, descriptors);
        }
    }

    /// Counts the ended requests, and hands them to the thread that writes them. Called after the
    /// replies are written.
    pub(crate) fn hand_over(&mut self) {
        if self.ended.is_empty() {
            return;
        }
        // Requests that no daemon saw end began before this daemon started to count.
        for ended in self.ended.iter().filter(|ended| !ended.at_least) {
            let EndedRequest { open, ending, ended_ms, .. } = ended;
            self.counters.ended(&open.asked, ending, *ended_ms, ended.held_ms());
        }
        if self.starts() {
            // At this point the requests are in the processor's cache, and the thread that created
            // them frees them.
            for ended in self.ended.drain(..) {
                match ended.exit {
                    None => self.batch.push(&ended.record()),
                    Some(_) => self.with_exit.push(ended),
                }
            }
            self.queue.hand_over(&mut self.batch, &mut self.with_exit);
        } else if self.files.is_some() {
            self.queue.count_dropped(self.ended.len() as u64);
        }
        self.ended.clear();
    }

    /// Starts a search for a connection. Returns whether it was started: it is not if the history
    /// is off or has no thread.
    pub(crate) fn search(&mut self, id: ConnId, search: Search) -> bool {
        if !self.starts() {
            return false;
        }
        // The search also finds the requests that ended in this turn.
        self.hand_over();
        self.queue.give(|work| work.searches.push_back((id, search)));
        true
    }

    /// How long a record is kept, in milliseconds; `None` if no records are kept.
    pub(crate) fn kept_ms(&self) -> Option<u64> {
        self.files.as_ref().map(|files| files.limits.keep_ms)
    }

    /// Updates how long keys were held recently. At first this is unknown, because the thread reads
    /// the files.
    pub(crate) fn learn(&mut self) {
        if self.starts() {
            self.summary = self.queue.summary();
        }
    }

    /// Writes the remaining records. Called when the daemon ends.
    pub(crate) fn close(&mut self) {
        self.hand_over();
        if self.files.is_some() && self.left.is_none() {
            self.hand_over_open();
        }
        if let Some(thread) = self.thread.take() {
            self.queue.give(|work| work.closing = true);
            if thread.join().is_err() {
                tracing::error!("the history thread has failed");
            }
        }
    }

    /// Hands these records to the thread, which writes those that are not in the files yet.
    fn recall(&mut self, mut records: Batch) {
        if !records.is_empty() && self.starts() {
            self.queue.give(|work| work.recalled.take_from(&mut records));
        }
    }

    /// Hands over the open requests, if there are any now or there were at the last note.
    fn hand_over_open(&mut self) {
        self.is_changed = false;
        if !self.is_noted && self.open.is_empty() || !self.starts() {
            return;
        }
        let known_ms = clock::unix_ms();
        let (held, waiting): (Vec<_>, Vec<_>) =
            self.open.values().partition(|it| it.hold.is_some());
        let mut records = Batch::default();
        for open in held.into_iter().chain(waiting).take(NOTED_MAX) {
            let ended = open.clone().ended_at(known_ms, Ending::Reboot);
            let ended = EndedRequest { host: self.host.clone(), at_least: true, ..ended };
            records.push(&ended.record());
        }
        self.is_noted = !self.open.is_empty();
        let boot_id = self.files.as_ref().map(|files| files.boot_id.clone()).unwrap_or_default();
        let noted = Checkpoint { boot_id, known_ms, records };
        self.queue.give(|work| work.noted = Some(noted));
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

    /// Derives from an outcome which requests of this host began, were granted, or ended, and how.
    fn take_in_outcome(
        &mut self,
        (change, by): (&Change, Option<&Credentials>),
        revision: Revision,
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
                // `None` if the hold ended within the same entry.
                let hold = table.hold_to_keep(granted.token);
                let ours = hold.as_ref().filter(|hold| is_of(table, hold.frame, here));
                let open = match (self.open.entry(granted.request), ours) {
                    (Entry::Occupied(open), _) => open.into_mut(),
                    (Entry::Vacant(open), Some(hold)) => open.insert(Open::of_hold(table, hold)),
                    (Entry::Vacant(_), None) => return,
                };
                open.hold = hold;
                let since = open.begun_at();
                let waited_ms = since.0.saturating_sub(open.asked_at.0);
                self.counters.granted(&open.asked, since.0, waited_ms);
            }
            Outcome::ConfirmedAt { request, token, .. } => {
                if let Some(hold) = self.open.get_mut(request).and_then(|open| open.hold.as_mut()) {
                    Arc::make_mut(hold).token = *token;
                }
            }
            Outcome::Requeued { request, .. } => {
                if let Some(open) = self.open.get_mut(request) {
                    open.hold = None;
                }
            }
            Outcome::Refused { request, why } => {
                let at_once = || match change {
                    Change::Request(asked) if asked.host == here && revision.0 == request.0 => {
                        Some(Open::refused_at_once(table, here, asked))
                    }
                    _ => None,
                };
                if let Some(open) = self.open.remove(request).or_else(at_once)
                    && let Some(ending) = refused(table, &open, why)
                {
                    self.add(open, ending);
                }
            }
            Outcome::Withdrawn { request } | Outcome::Released { request, whole: true, .. } => {
                if let Some(open) = self.open.remove(request)
                    && let Some(ending) = self.ending(change, by, &open, *request)
                {
                    self.add(open, ending);
                }
            }
            Outcome::FrameGone { frame } => {
                self.exits.of.remove(frame);
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
            | Outcome::Prioritized { .. }
            | Outcome::ResizeRefused { .. }
            | Outcome::ResizeRefusedOverNodes
            | Outcome::Stored { .. } => {}
        }
    }

    /// How a request ended; `None` if it is requested again.
    fn ending(
        &mut self,
        change: &Change,
        by: Option<&Credentials>,
        open: &Open,
        request: RequestId,
    ) -> Option<Ending> {
        let cause = self.causes.remove(&request);
        let is_held = open.hold.is_some();
        let is_orphaned = open.hold.as_ref().is_some_and(|hold| hold.orphaned);
        Some(match (change, cause) {
            (Change::Release(Release::Hold { forced: true, .. }), _) if is_held => {
                let by = by.map(|peer| HistoryClient { uid: peer.uid, pid: peer.pid });
                Ending::Forced { by }
            }
            // The daemon releases a hold that descendants kept when the last of them has ended.
            (Change::Release(_), Some(Cause::Overrun)) if is_orphaned => OVERRUN,
            (Change::Release(_), _) if is_orphaned => Ending::Ended,
            (Change::Release(_), _) if is_held => Ending::Released,
            (Change::Expire { .. }, _) if is_held => Ending::Expired,
            (Change::HostGone { .. }, _) if is_held => Ending::Lost,
            (Change::End { .. }, Some(Cause::Overrun)) => OVERRUN,
            // It was granted before the signal ended it, so the exit status says how it ended.
            (Change::End { .. }, Some(Cause::Killed { .. })) if is_held => Ending::Ended,
            // From here on, a client with a hold never received the grant, unless its process has
            // ended. The process of a client that gave up may have ended in the meantime.
            (_, Some(Cause::Abandoned)) => Ending::Abandoned,
            (_, Some(Cause::Killed { signal, by })) => Ending::KilledWaiting { signal, by },
            (Change::End { .. }, _) => Ending::Ended,
            (_, Some(Cause::TimedOut)) => Ending::Timeout,
            // The next incarnation of the host requests it again.
            (Change::HostGone { .. }, _) => return None,
            _ => Ending::Withdrawn,
        })
    }

    /// Adds the request, which has just ended.
    fn add(&mut self, mut open: Open, ending: Ending) {
        let is_untold = matches!(
            ending,
            Ending::Withdrawn | Ending::Abandoned | Ending::Timeout | Ending::KilledWaiting { .. }
        );
        open.hold.take_if(|_| is_untold);
        let (mut seen_until, mut exit) = (None, None);
        if matches!(ending, Ending::Ended | Ending::MaxRun { .. }) {
            seen_until = self.unseen.get(&open.frame).copied();
            exit = self.exits.of.get(&open.frame).cloned();
        }
        let begun_ms = open.begun_at().0;
        let ended_ms = seen_until.map_or_else(clock::unix_ms, |known_ms| known_ms.max(begun_ms));
        let (host, at_least) = (self.host.clone(), seen_until.is_some());
        let ended = EndedRequest { host, exit, at_least, ..open.ended_at(ended_ms, ending) };
        if let Some(notable) = &mut self.notable
            && On::of(&ended.ending).is_some()
        {
            notable.push(ended.clone());
        }
        self.ended.push(ended);
    }

    /// Follows a lease to this host, or from this host to another one.
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

    /// Records that all holds of processes of this host are lost. Waiting requests are made again,
    /// and leases move to another host.
    pub(crate) fn lose(&mut self) {
        self.lose_those(|_, it| it.hold.is_some() && matches!(it.asked.owner, Owner::Process(_)));
    }

    /// Forgets these requests. Records that their holds are lost; one that waited is made again.
    fn lose_those(&mut self, are_lost: impl Fn(RequestId, &Open) -> bool) {
        let lost = self.open.iter().filter(|(request, open)| are_lost(**request, open));
        for request in lost.map(|(request, _)| *request).collect::<Vec<_>>() {
            if let Some(open) = self.open.remove(&request).filter(|open| open.hold.is_some()) {
                self.add(open, Ending::Lost);
            }
        }
        self.is_changed = true;
    }

    /// Takes over a table that replaces the previous one, or another part of the same table.
    /// Requests that are no longer in it ended unseen.
    pub(crate) fn follow(&mut self, table: &Table, here: HostId) {
        self.lose_those(|id, _| table.waiter(id).is_none() && table.hold_of(id).is_none());
        self.causes.retain(|request, _| self.open.contains_key(request));
        self.exits.of.clear();
        for waiter in table.waiters().filter(|waiter| is_of(table, waiter.frame, here)) {
            self.open.entry(waiter.id).or_insert_with(|| Open::of_waiter(table, waiter));
        }
        for hold in table.holds().filter(|hold| is_of(table, hold.frame, here)) {
            self.open.insert(hold.request, Open::of_hold(table, hold));
        }
    }
}

/// The end of a command that ran for too long, before its exit status is known.
const OVERRUN: Ending = Ending::MaxRun { exit: None, signal: None };

/// Whether this host is responsible for a frame.
pub(crate) fn is_of(table: &Table, frame: FrameId, here: HostId) -> bool {
    // The job tokens of a build are not requests of a client. The build has its own record.
    let is_token = |owner: &Owner| matches!(owner, Owner::Jobserver(_));
    table.frame(frame).is_some_and(|frame| frame.host == here && !is_token(&frame.owner))
}

/// The record of a refusal; `None` if the request was invalid, or is made again.
fn refused(table: &Table, open: &Open, why: &Refusal) -> Option<Ending> {
    Some(match why {
        Refusal::Full { .. } => Ending::Full,
        Refusal::Paused { .. } => Ending::Paused,
        Refusal::MaxWaiting { .. } => Ending::MaxWaiting,
        Refusal::Superseded { .. } => Ending::Superseded,
        Refusal::OwnDeadlock { .. } => Ending::Deadlock(Vec::new()),
        Refusal::Deadlock { cycle } => {
            let step = |step: &WaitFor| {
                let frame = table.frame(step.frame);
                HistoryStep {
                    session: format!("s{}", table.session(step.frame)),
                    uid: frame.map_or(0, |frame| frame.uid),
                    pid: frame.map_or(0, |frame| pid_of(&frame.owner)),
                    key: step.key.as_str().to_owned(),
                }
            };
            let mut cycle: Vec<_> = cycle.iter().map(step).collect();
            // Its frame may have ended with it.
            if let Some(first) = cycle.first_mut() {
                first.session = format!("s{}", open.session);
                (first.uid, first.pid) = (open.asked.uid, pid_of(&open.asked.owner));
            }
            Ending::Deadlock(cycle)
        }
        Refusal::TooLarge { .. } | Refusal::RequireTooLarge { .. } => Ending::TooLarge,
        Refusal::Kind { .. } | Refusal::OtherNodes { .. } => Ending::Mismatch,
        Refusal::Invalid { .. }
        | Refusal::Duplicate
        | Refusal::CannotEnd { .. }
        | Refusal::Recovering => return None,
    })
}

#[cfg(test)]
mod tests;
