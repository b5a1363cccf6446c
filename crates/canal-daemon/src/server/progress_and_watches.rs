//! Informs waiters, and clients that watch the status or a leader, about changes.
//!
//! Progress messages are rare on purpose: with ten thousand waiters on one key, each grant changes
//! ten thousand positions.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::calls::call::{Answer, ConnId};
use crate::history::queue_for_estimate;
use crate::net::call_state::{CallState, Subject};
use crate::net::connection::Connection;
use crate::server::Server;
use crate::server::process_ends_and_stops::AHEAD_EVERY;
use crate::timers::is_due;
use crate::view::visible_table::is_held;
use crate::waiters::progress_hash;
use canal_core::{Key, Mode, OwnSlots, Reason, RequestId};
use canal_protocol::{EstimateInfo, HolderInfo, Progress};
use canal_sys::clock;

/// The minimum time between two progress messages to a waiter.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// The minimum time between two reports to a client that watches the status.
const WATCH_EVERY: Duration = Duration::from_millis(250);

/// The daemon looks up the position of a new waiter if its key has at most this many waiters.
/// Otherwise it sends the number of waiters instead.
const LOOKED_UP_MAX: usize = 256;

/// The minimum interval between progress messages is this long for each waiter, so that ten
/// thousand waiters cost as much per second as a thousand.
const PROGRESS_EVERY_PER_WAITER: Duration = Duration::from_millis(1);

/// The facts that all waiters for a key in the same mode share.
#[derive(Debug, Default)]
struct Scene {
    /// The position of each waiter in the queue, if it was looked up.
    positions: BTreeMap<RequestId, usize>,
    waiting: usize,
    /// The holders that block them, as each user may see these holders, by whether they have taken
    /// all slots.
    holders: BTreeMap<(u32, bool), Vec<HolderInfo>>,
    /// How much longer each waiter will probably wait.
    estimates: BTreeMap<RequestId, EstimateInfo>,
}

/// The least time between two checks of the leaders that clients watch, so that a thousand watchers
/// do not slow down a daemon that grants thousands of requests per second.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How long to wait before checking again for a client that has not read its last message.
const UNREAD_EVERY: Duration = Duration::from_millis(250);

impl Server {
    /// Queues the messages that are due.
    pub(crate) fn inform(&mut self, now: Instant) {
        let newcomers = std::mem::take(&mut self.waiters.newcomers);
        let mut scenes = BTreeMap::new();
        for request in newcomers {
            // Estimates take time, and there may be many newcomers: they get estimates with the
            // next progress.
            self.tell_progress(request, &mut scenes, None);
        }
        if is_due(&mut self.due.progress, now) {
            self.observe.history.learn();
            let (mut scenes, mut budget) = (BTreeMap::new(), queue_for_estimate::LOOKED_AT_MAX);
            let waiting: Vec<RequestId> = self.waiters.iter().map(|(request, _)| request).collect();
            for request in waiting {
                self.tell_progress(request, &mut scenes, Some(&mut budget));
            }
        }
        if is_due(&mut self.due.watch, now) {
            for id in self.conns.those(Subject::Status) {
                if !self.conns.peek(id).is_some_and(Connection::is_flushed) {
                    // The client is still reading the last report. It gets the next one after that.
                    self.due.watch = Some(clock::now() + WATCH_EVERY);
                } else if let CallState::Watches(selection) =
                    self.conns.set_state(id, CallState::Idle)
                {
                    self.conns.set_state(id, CallState::Report(Some(selection)));
                }
            }
        }
        if std::mem::take(&mut self.due.changed) {
            self.schedule(now);
        }
        if is_due(&mut self.due.leaders, now) {
            self.due.leaders_rest_until = Some(clock::now() + LOOK_EVERY);
            self.conns.those(Subject::Leader).into_iter().for_each(|id| self.tell_leader(id));
        }
    }

    fn schedule(&mut self, now: Instant) {
        if self.waiters.len() > 0 {
            // A waiter may now be behind another.
            if self.decide.table().waiters().len() > 1 {
                self.due.check_ahead.get_or_insert(now + AHEAD_EVERY);
            }
            let waiters = u32::try_from(self.waiters.len()).unwrap_or(u32::MAX);
            let every = PROGRESS_EVERY.max(PROGRESS_EVERY_PER_WAITER.saturating_mul(waiters));
            self.due.progress.get_or_insert(now + every);
        }
        let is_watched = |subject| self.conns.waits(subject).next().is_some();
        if is_watched(Subject::Leader) {
            let soon = self.due.leaders_rest_until.map_or(now, |rested| rested.max(now));
            self.due.leaders = self.due.leaders.into_iter().chain([soon]).min();
        }
        if is_watched(Subject::Status) {
            self.due.watch.get_or_insert(now + WATCH_EVERY);
        }
    }

    /// Sends a waiter its position and the reason for its wait, unless the last message was the
    /// same.
    fn tell_progress(
        &mut self,
        request: RequestId,
        scenes: &mut BTreeMap<(Key, Mode), Scene>,
        budget: Option<&mut usize>,
    ) {
        let Some(waiter) = self.waiters.get(request) else { return };
        let Some(id) = self.conns.waiter(request) else { return };
        let Some(conn) = self.conns.peek(id) else { return };
        let viewer = conn.peer.uid;
        // A client that has not read the last message gets no further one.
        if !conn.is_flushed() || !conn.takes_more() {
            return;
        }
        let shown = self.shown(viewer);
        let Some((why, mode, reason)) = shown.why(request) else {
            return self.tell_kept_grant(request, id);
        };
        let key = why.key;
        let scene = scenes.entry((key.clone(), mode)).or_insert_with(|| self.scene(&key, budget));
        let estimate = scene.estimates.get(&request).copied();
        let position = scene.positions.get(&request).copied().unwrap_or(scene.waiting);
        let news = progress_hash(position, &reason, estimate.as_ref());
        if self.waiters.get(request).is_some_and(|waiter| waiter.told == Some(news)) {
            return;
        }
        let asked = &waiter.open.asked;
        let frame = shown.table.waiter(request).map(|waiter| waiter.frame);
        let holders = || shown.holders(asked, why.item, OwnSlots::LeftOut);
        let holders = if !is_held(&why.reason) {
            Vec::new()
        } else if frame.is_some_and(|frame| shown.nests(frame)) {
            holders()
        } else {
            let is_full = matches!(why.reason, Reason::Full { .. });
            scene.holders.entry((viewer, is_full)).or_insert_with(holders).clone()
        };
        let progress = Progress {
            key: key.to_string(),
            position: position as u64,
            waiting: scene.waiting as u64,
            session: frame.map(|frame| shown.session(frame)),
            reason,
            holders,
            estimate,
        };
        self.conns.answer(id, Answer::followed(&progress, true));
        if let Some(waiter) = self.waiters.get_mut(request) {
            waiter.told = Some(news);
        }
    }

    /// Informs a waiter why it still waits although its request was granted: the grant is sent only
    /// when this host is sure of it.
    fn tell_kept_grant(&mut self, request: RequestId, id: ConnId) {
        let reason = self.decide.not_a_member().message;
        let Some(waiter) = self.waiters.get_mut(request) else { return };
        let news = progress_hash(0, &reason, None);
        if waiter.told.replace(news) == Some(news) {
            return;
        }
        let item = waiter.open.asked.items.first();
        let key = item.map_or_else(String::new, |item| item.key.to_string());
        let hold = self.decide.table().hold_of(request);
        let session = hold.map(|hold| format!("s{}", self.decide.table().session(hold.frame)));
        let progress = Progress { key, session, reason, ..Progress::default() };
        self.conns.answer(id, Answer::followed(&progress, true));
    }

    /// The facts that all waiters of a key share. `budget`: how many holders and waiters the
    /// estimates may examine; without it, there are no estimates, and only few positions.
    fn scene(&self, key: &Key, budget: Option<&mut usize>) -> Scene {
        let table = self.decide.table();
        let mut scene = Scene { waiting: table.waiting_for(key), ..Scene::default() };
        if budget.is_some() || scene.waiting <= LOOKED_UP_MAX {
            scene.positions = table.served(key).into_iter().zip(1..).collect();
        }
        if let Some((summary, budget)) = self.observe.history.summary.as_deref().zip(budget) {
            scene.estimates =
                queue_for_estimate::of_key(table, key, summary, clock::unix_ms(), budget);
        }
        scene
    }

    /// Informs a watcher if its last message names another leader.
    ///
    /// Invariant: no client receives the same leader twice in a row. Once a client has received a
    /// leader, it never receives one that the log replaced before.
    fn tell_leader(&mut self, id: ConnId) {
        let Some(conn) = self.conns.peek(id) else { return };
        let CallState::WatchesLeader(key, told) = conn.state() else { return };
        let (key, viewer, has_read) = (key.clone(), conn.peer.uid, conn.is_flushed());
        let (news, reply) = match self.find_leader(&key) {
            Ok(found) if found.news() == *told => return,
            Ok(_) if !has_read => {
                self.due.leaders = Some(clock::now() + UNREAD_EVERY);
                return;
            }
            Ok(found) => (found.news(), self.shown(viewer).leader_reply(found, &key)),
            Err(failure) => return self.carry_out(id, Err(failure)),
        };
        self.conns.answer(id, Answer::followed(&reply, true));
        self.conns.set_state(id, CallState::WatchesLeader(key, news));
    }
}
