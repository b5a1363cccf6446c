//! Reports: replies about the whole table, which may be long.
//!
//! Invariant: a report is built only if its client has read all earlier replies, and the limits on
//! unread replies, for its user and for all users together, leave room for it. Until then the call
//! waits in its connection, and other calls are served.

use std::time::{Duration, Instant};

use crate::calls::conn_id::ConnId;
use crate::limits::{CALLS_AHEAD_MAX, REPORT_TIME_PER_TURN};
use crate::net::call_state::CallState;
use crate::net::unread_reports::Unread;
use crate::server::Server;
use canal_sys::clock;

impl Server {
    /// Builds reports while this turn has room and time for them.
    pub(crate) fn serve_reports(&mut self) {
        if self.reports.queues.is_empty() {
            self.due.reports = None;
            return;
        }
        let begun = clock::now();
        if let Some(until) = self.reports.rests_until.filter(|until| begun < *until) {
            self.due.reports = Some(until);
            return;
        }
        self.reports.look(&self.conns, begun);
        for id in self.reports.stuck(begun) {
            tracing::debug!("closing a connection that does not read its report");
            if let Some(conn) = self.conns.get(id) {
                conn.discard_output();
            }
        }
        let mut time = Duration::ZERO;
        let may_all = self.not_bound();
        while time < REPORT_TIME_PER_TURN
            && let Some(id) = self.reports.next(&self.conns, &may_all)
        {
            self.report_to(id);
            time = clock::now().saturating_duration_since(begun);
        }
        let tired = time >= REPORT_TIME_PER_TURN;
        // Other calls get as much time as the reports took.
        self.reports.rests_until = tired.then(|| begun + time + time);
        self.due.reports = self.reports.rests_until;
    }

    /// Schedules the next check of reports, after all output that clients accept was written. A
    /// client may already have read all output that other reports wait for, and the kernel sends no
    /// event for that.
    pub(crate) fn look_ahead_at_reports(&mut self, now: Instant) {
        if self.reports.queues.is_empty() || self.due.reports.is_some() {
            return;
        }
        self.reports.look(&self.conns, now);
        let goes_on = self.reports.find_next(&self.conns, self.not_bound()).is_some();
        self.due.reports = if goes_on { Some(now) } else { self.reports.next_stuck() };
    }

    /// Whether a user is exempt from the limit on the unread replies of all users together.
    fn not_bound(&self) -> impl Fn(u32) -> bool + use<> {
        let own = self.about.uid;
        move |uid| uid == own || uid == 0
    }

    fn report_to(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get(id) else { return };
        let uid = conn.peer.uid;
        if let Some(watch) = conn.status_watch_mut() {
            watch.is_queued = false;
            let selection = watch.selection.clone();
            self.show_status(id, uid, &selection);
        } else if matches!(conn.state(), CallState::Report) {
            let was_full = conn.calls.len() >= CALLS_AHEAD_MAX;
            self.serve_report(id);
            if was_full {
                self.conns.hear_again(id);
            }
        }
        let left = self.conns.peek(id).map_or(0, |conn| conn.unsent());
        if left > 0 {
            self.reports.unread.push(Unread { id, uid, left, since: clock::now() });
        }
    }
}
