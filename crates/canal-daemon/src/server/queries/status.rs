//! Builds the status: the state of one lock and those below it, or of all locks.

use crate::calls::answer::{Answer, Follows, written};
use crate::calls::conn_id::ConnId;
use crate::calls::items;
use crate::limits::NAMES_MAX;
use crate::logging;
use crate::net::call_state::{CallState, StatusWatch};
use crate::server::Server;
use crate::server::dispatch::step::Step;
use crate::view::selection::Selection;
use canal_protocol::{Failure, Status, StatusQuery};
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
        let cluster = self.cluster.as_ref();
        Status {
            daemon,
            keys,
            left_out,
            engine: cluster.map(|cluster| cluster.shown(&self.ledger)),
            hosts: cluster.map_or_else(Vec::new, |cluster| cluster.hosts_shown(&self.ledger)),
        }
    }

    /// Whether the table may be out of date: this host does not learn from the engine what other
    /// hosts do.
    pub(crate) fn is_stale(&self) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.is_stale())
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
        if self.ledger.table.waiting() > 0 {
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
        if self.ledger.table.waiting() > 0 {
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
