//! Informs clients that watch the leader of a key when it changes.
//!
//! Invariant: no client receives the same leader twice in a row. Once a client has received a
//! leader, it never receives one that the log replaced before.

use std::time::Duration;

use crate::calls::conn_id::ConnId;
use crate::net::call_state::CallState;
use crate::server::Server;
use crate::view::leadership::LeaderWatch;
use canal_sys::clock;

/// The least time between two checks of the leaders that clients watch, so that a thousand watchers
/// do not slow down a daemon that grants thousands of requests per second.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How long to wait before checking again for a client that has not read its last message.
const UNREAD_EVERY: Duration = Duration::from_millis(250);

impl Server {
    /// Informs each watcher whose last message names another leader.
    pub(crate) fn tell_leaders(&mut self) {
        let watchers = self.conns.leader_watchers();
        self.due.leaders.are_watched = !watchers.is_empty();
        self.due.leaders.rest_until = Some(clock::now() + LOOK_EVERY);
        for id in watchers {
            self.tell_leader(id);
        }
    }

    fn tell_leader(&mut self, id: ConnId) {
        let Some(conn) = self.conns.peek(id) else { return };
        let CallState::WatchesLeader(watch) = conn.state() else { return };
        let (key, viewer, has_read) = (watch.key.clone(), conn.peer.uid, conn.is_flushed());
        let (told, reply) = match self.find_leader(&key) {
            Ok(found) if found.is_known(&watch.told) => return,
            Ok(_) if !has_read => {
                self.due.leaders.look = Some(clock::now() + UNREAD_EVERY);
                return;
            }
            Ok(found) => (found.told(), self.shown(viewer).leader_reply(found, &key)),
            Err(failure) => return self.carry_out(id, Err(failure)),
        };
        let watch = CallState::WatchesLeader(Box::new(LeaderWatch { key, told }));
        if let Some(conn) = self.conns.get(id) {
            conn.progress(&reply);
        }
        self.conns.set_state(id, watch);
    }
}
