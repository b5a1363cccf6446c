//! Schedules work, and does the work that is due.

use std::io;
use std::time::{Duration, Instant};

use crate::due::is_due;
use crate::limits::{STOPPED_EVERY, UNSURE_EVERY};
use crate::net::events::Source;
use crate::server::Server;
use canal_sys::clock;
use canal_text::duration::stated;

impl Server {
    /// Sleeps until there is something to do.
    pub(crate) fn sleep(&mut self) {
        let time = self.time_to_sleep();
        let begun = clock::now();
        if self.conns.wait(time) {
            self.spin.slept(clock::now().saturating_duration_since(begun));
        }
    }

    /// How long the daemon may sleep if no event arrives and its boottime timer does not go off.
    pub(crate) fn time_to_sleep(&self) -> Option<Duration> {
        let now = clock::now();
        let due = &self.due;
        let times = [
            due.come_back,
            due.detached,
            due.stopped,
            self.due.look_ahead.due,
            due.closing,
            due.node_settled,
            due.progress,
            due.watch,
            due.leaders.look,
            due.reports,
            due.home,
            due.verify,
            due.unsure,
            due.idle,
            self.jobservers.due,
            self.hooks.due,
            self.history.note_due(),
            self.cluster.as_ref().and_then(|cluster| cluster.watcher_due()),
            self.in_force.readings.due(now),
            self.conns.next_deferred(),
            self.runtime_dir.listener.pauses_until(),
        ];
        times.into_iter().flatten().min().map(|at| at.saturating_duration_since(now))
    }

    /// Sets the timer for work that is also due while the machine is suspended: the ends of waits
    /// and leases, and the deadlines of the engine.
    pub(crate) fn set_alarm(&mut self) -> io::Result<()> {
        if self.conns.reported.take(Source::BoottimeTimer) {
            self.due.timer.went_off();
        }
        let ends = [self.waiters.next_end(), self.leases.next_end()];
        let is_member = self.ledger.is_member();
        let of_cluster = self.cluster.as_ref().and_then(|cluster| cluster.next_due(is_member));
        let ends = ends.into_iter().chain([self.conns.next_log_due(), of_cluster]);
        let next = ends.flatten().min();
        self.due.timer.set(next)
    }

    /// Does the work that is due.
    pub(crate) fn on_time(&mut self, now: Instant) {
        self.end_waits();
        self.look_at_pending();
        if is_due(&mut self.due.come_back, now) {
            self.give_up_the_lost(now);
        }
        if is_due(&mut self.due.detached, now) {
            self.look_at_detached(now);
        }
        if is_due(&mut self.due.stopped, now) {
            self.look_at_stopped();
        }
        if is_due(&mut self.due.look_ahead.due, now) {
            self.look_ahead_of_waiters(now);
        }
        if is_due(&mut self.due.unsure, now) {
            self.look_at_unsure();
        }
        if is_due(&mut self.due.node_settled, now) {
            self.settle_node();
        }
        self.look_after_home(now);
        if let Some(cluster) = &mut self.cluster {
            cluster.look_after_watcher(&mut self.conns, now);
        }
    }

    /// Schedules the next work at the end of a turn, because no event may start another turn.
    pub(crate) fn look_ahead(&mut self, now: Instant) {
        if self.due.stopped.is_none() && self.waiters.suspended().next().is_some() {
            self.due.stopped = Some(now + STOPPED_EVERY);
        }
        if self.due.unsure.is_none() && !self.children.unsure().is_empty() {
            self.due.unsure = Some(now + UNSURE_EVERY);
        }
        self.due.closing = self.conns.close_slow(now);
        self.look_ahead_at_reports(now);
        self.note_idleness(now);
    }

    pub(crate) fn note_idleness(&mut self, now: Instant) {
        let Some(limit) = self.limits.idle_exit else { return };
        let table = &self.ledger.table;
        let used = match self.cluster {
            None => table.held() > 0 || table.waiting() > 0,
            Some(_) => table.frames_of_host(self.ledger.host).next().is_some(),
        };
        let busy = self.conns.len() > 0 || used || self.hooks.are_busy();
        if busy {
            self.due.idle = None;
        } else if is_due(&mut self.due.idle, now) {
            tracing::info!("idle for {}; the daemon ends", stated(limit));
            self.stopping = true;
        } else if self.due.idle.is_none() {
            self.due.idle = Some(now + limit);
        }
    }
}
