//! The status of locks, the leader of a key, and the metrics.

use crate::calls::call::{Answer, ConnId};
use crate::calls::parameters;
use crate::cluster::member_and_engine::Cluster;
use crate::logging;
use crate::metrics::open_metrics::text;
use crate::net::call_state::CallState;
use crate::net::connection::Connection;
use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step};
use crate::view::holder::LeaderFound;
use crate::view::status_keys::Selection;
use canal_core::Key;
use canal_protocol::{LeaderQuery, Metrics, Status, StatusQuery};

/// The most keys in one reply to a client that completes a command line.
const NAMES_MAX: usize = 10_000;

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
            key: query.key.as_deref().map(parameters::key).transpose()?,
            uid: if query.mine { Some(peer.uid) } else { query.uid },
            session: query.session.as_deref().map(parameters::session).transpose()?,
            waiting: query.waiting,
            full: query.full,
        };
        let report = self.status_report(caller.id, &selection);
        Ok(self.begin_watch(caller.id, report, CallState::Watches(selection)))
    }

    /// Answers a call, or lets it watch its subject if the client wants that.
    fn begin_watch(&mut self, id: ConnId, report: Answer, watch: CallState) -> Step {
        let conn = self.conns.get(id).filter(|conn| conn.takes_more());
        let Some(conn) = conn else { return Step::Answer(report) };
        conn.answer(report);
        Step::Wait(watch)
    }

    /// The state of the selected locks. Empty for a client that wants no reply, to save the work.
    pub(crate) fn status_report(&mut self, id: ConnId, selection: &Selection) -> Answer {
        if self.decide.table().waiters().len() > 0 {
            self.observe.history.learn();
        }
        let Some(conn) = self.conns.peek(id).filter(|conn| !conn.is_oneway()) else {
            return Answer { message: Vec::new(), fds: Vec::new(), closes: false };
        };
        let (shown, left_out) = self.shown(conn.peer.uid).keys(selection);
        Answer::followed(&self.status_of(conn.peer.uid, shown, left_out), conn.takes_more())
    }

    /// All figures, as text.
    pub(crate) fn metrics(&mut self) -> Step {
        let snapshot = self.observe.snapshot(&self.decide, self.conns.len());
        Step::reply(&Metrics { text: text(&snapshot) })
    }

    pub(crate) fn leader(&mut self, caller: &Caller, query: &LeaderQuery) -> Result {
        let key = parameters::key(&*query.key)?;
        let found = self.find_leader(&key)?;
        let (reply, news) = (self.shown(caller.peer.uid).leader_reply(found, &key), found.news());
        let continues = self.conns.peek(caller.id).is_some_and(Connection::takes_more);
        let report = Answer::followed(&reply, continues);
        Ok(self.begin_watch(caller.id, report, CallState::WatchesLeader(key, news)))
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
        let hold = self.shown(self.about.uid).leader(key)?;
        Ok(LeaderFound { hold, stale: self.decide.cluster().is_some_and(Cluster::is_stale) })
    }
}
