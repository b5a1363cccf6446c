//! The status of locks, the leader of a key, and the metrics.

use crate::calls::answer::{Answer, Follows, written};
use crate::calls::conn_id::ConnId;
use crate::calls::items;
use crate::limits::NAMES_MAX;
use crate::logging;
use crate::metrics::counters::Counters;
use crate::metrics::open_metrics::text;
use crate::metrics::snapshot::Snapshot;
use crate::net::call_state::{CallState, StatusWatch};
use crate::server::Server;
use crate::server::step::Step;
use crate::view::leadership::{LeaderFound, LeaderWatch};
use crate::view::selection::Selection;
use canal_core::Key;
use canal_protocol::{Failure, LeaderQuery, Metrics, Status, StatusQuery};
use canal_sys::clock;
use canal_sys::peer::Credentials;

impl Server {
    /// Builds a status. `left_out` is the number of keys that `keys` does not contain.
    pub(crate) fn status_of<K>(&self, viewer: u32, keys: K, left_out: u64) -> Status<K> {
        let mut daemon = self.about.clone();
        daemon.notes.extend(logging::note());
        daemon.notes.extend(self.history.notes());
        daemon.notes.extend(self.leases.note());
        // The notes name programs and addresses, and otherwise only the configuration contains
        // those.
        if self.is_operator(viewer) {
            daemon.notes.extend(self.hooks.notes());
            daemon.notes.extend(self.exporter.as_ref().and_then(|exporter| exporter.note()));
        }
        Status {
            daemon,
            keys,
            left_out,
            engine: self.decide.engine_shown(),
            hosts: self.decide.hosts_shown(),
        }
    }

    pub(crate) fn status(
        &mut self,
        id: ConnId,
        peer: Credentials,
        query: &StatusQuery,
        more: bool,
    ) -> Result<Step, Failure> {
        if let Some(max) = query.names_max {
            let max = usize::try_from(max).unwrap_or(usize::MAX).min(NAMES_MAX);
            let keys = self.shown(peer.uid).names(query.key.as_deref().unwrap_or(""), max);
            return Ok(Step::reply(&self.status_of(peer.uid, keys, 0)));
        }
        if self.decide.table().waiting() > 0 {
            self.history.learn();
        }
        let selection = Selection {
            key: query.key.as_deref().map(items::key).transpose()?,
            uid: if query.mine { Some(peer.uid) } else { query.uid },
            session: query.session.as_deref().map(items::session).transpose()?,
            waiting: query.waiting,
            full: query.full,
        };
        let follows = if more { Follows::More } else { Follows::Nothing };
        let report = self.status_report(id, peer.uid, &selection, follows);
        match self.conns.get(id).filter(|conn| more && !conn.heard_end()) {
            None => Ok(Step::Answer(Answer::report(report))),
            Some(conn) => {
                conn.progress_written(report);
                self.due.watched = true;
                let watch = StatusWatch { selection, is_queued: false };
                Ok(Step::Wait(CallState::Watches(Box::new(watch))))
            }
        }
    }

    /// Sends the state of the locks that a client watches.
    pub(crate) fn show_status(&mut self, id: ConnId, viewer: u32, selection: &Selection) {
        if self.decide.table().waiting() > 0 {
            self.history.learn();
        }
        let report = self.status_report(id, viewer, selection, Follows::More);
        if let Some(conn) = self.conns.get(id) {
            conn.progress_written(report);
        }
    }

    /// The state of the selected locks. Empty for a client that wants no reply, to save the work.
    fn status_report(
        &self,
        id: ConnId,
        viewer: u32,
        selection: &Selection,
        follows: Follows,
    ) -> Option<Vec<u8>> {
        if self.conns.peek(id).is_none_or(|conn| conn.is_oneway()) {
            return Some(Vec::new());
        }
        let (shown, left_out) = self.shown(viewer).keys(selection);
        written(&self.status_of(viewer, shown, left_out), follows)
    }
}

/// Finds the leader of a key.
impl Server {
    pub(crate) fn leader(
        &mut self,
        id: ConnId,
        peer: Credentials,
        query: &LeaderQuery,
        more: bool,
    ) -> Result<Step, Failure> {
        let key = items::key(&query.key)?;
        let found = self.find_leader(&key)?;
        let (told, reply) = (found.told(), self.shown(peer.uid).leader_reply(found, &key));
        match self.conns.get(id).filter(|conn| more && !conn.heard_end()) {
            None => Ok(Step::Answer(Answer::reply(&reply))),
            Some(conn) => {
                conn.progress_written(written(&reply, Follows::More));
                self.due.leaders.are_watched = true;
                Ok(Step::Wait(CallState::WatchesLeader(Box::new(LeaderWatch { key, told }))))
            }
        }
    }

    /// The leader of a key, as far as this host knows.
    ///
    /// # Errors
    /// The key can have several holders at once.
    pub(crate) fn find_leader(&self, key: &Key) -> Result<LeaderFound<'_>, Failure> {
        // While this host reads the log again from its start, the table shows past leaders.
        if !self.decide.is_member() {
            return Ok(LeaderFound::UNKNOWN);
        }
        self.shown(self.about.uid).leader(key, self.decide.is_stale())
    }
}

/// Takes the current figures, for a client or for the thread that offers them.
impl Server {
    /// All figures, as text.
    pub(crate) fn metrics(&mut self) -> Step {
        Step::reply(&Metrics { text: text(&self.snapshot()) })
    }

    /// Passes the current figures to the thread that offers metrics, if it asked for them.
    pub(crate) fn give_metrics(&mut self) {
        if self.exporter.as_ref().is_some_and(|exporter| exporter.is_asked())
            && self.decide.is_present()
        {
            let snapshot = self.snapshot();
            if let Some(exporter) = &self.exporter {
                exporter.give(snapshot);
            }
        }
    }

    fn snapshot(&mut self) -> Snapshot {
        let mut none = Counters::default();
        let counters = self.history.counters().unwrap_or(&mut none);
        let figures = Snapshot::of(self.decide.table(), counters, clock::unix_ms());
        Snapshot {
            connections: self.conns.len() as u64,
            journal_bytes: self.decide.ledger().journal_bytes(),
            history_bytes: self.history.bytes(),
            history_dropped: self.history.dropped(),
            engine: self.decide.figures(),
            ..figures
        }
    }
}
