//! Finds the leader of a key.

use crate::calls::answer::{Answer, Follows, written};
use crate::calls::conn_id::ConnId;
use crate::calls::items;
use crate::net::call_state::CallState;
use crate::server::Server;
use crate::server::dispatch::step::Step;
use crate::view::leadership::{LeaderFound, LeaderWatch};
use canal_core::Key;
use canal_protocol::{Failure, LeaderQuery};
use canal_sys::peer::Credentials;

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
        if !self.ledger.is_member() {
            return Ok(LeaderFound::UNKNOWN);
        }
        self.shown(self.about.uid).leader(key, self.is_stale())
    }
}
