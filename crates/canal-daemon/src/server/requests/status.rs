//! The status of locks, the leader of a key, and the metrics.

use crate::calls::call::ConnId;
use crate::calls::call::{Answer, Follows, written};
use crate::calls::items;
use crate::cluster::Cluster;
use crate::limits::NAMES_MAX;
use crate::logging;
use crate::metrics::open_metrics::text;
use crate::net::call_state::{CallState, StatusWatch};
use crate::server::Server;
use crate::server::step::{Caller, Result, Step};
use crate::view::holder::{LeaderFound, LeaderWatch};
use crate::view::status::Selection;
use canal_core::Key;
use canal_protocol::{LeaderQuery, Metrics, Status, StatusQuery};

impl Server {
    /// Builds a status. `left_out` is the number of keys that `keys` does not contain.
    pub(crate) fn status_of<K>(&self, viewer: u32, keys: K, left_out: u64) -> Status<K> {
        let mut daemon = self.about.clone();
        daemon.notes.extend(logging::note());
        daemon.notes.extend(self.observe.history.notes());
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
        let Caller { id, peer, more, .. } = *caller;
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
        let report = self.status_report(id, viewer, selection, Follows::More);
        if let Some(conn) = self.conns.get(id) {
            conn.progress_written(report);
        }
    }

    /// The state of the selected locks. Empty for a client that wants no reply, to save the work.
    fn status_report(
        &mut self,
        id: ConnId,
        viewer: u32,
        selection: &Selection,
        follows: Follows,
    ) -> Option<Vec<u8>> {
        if self.decide.table().waiting() > 0 {
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
        let Caller { id, peer, more, .. } = *caller;
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
    pub(crate) fn find_leader(&self, key: &Key) -> Result<LeaderFound<'_>> {
        // While this host reads the log again from its start, the table shows past leaders.
        if !self.decide.is_member() {
            return Ok(LeaderFound::UNKNOWN);
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
