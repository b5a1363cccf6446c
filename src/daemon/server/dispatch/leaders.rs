//! Tells clients that watch the leader of a key when it changes.
//!
//! Invariant: a client is told nothing twice, and is not told a leader of which the log says that it
//! led no more when the client was told of the next one.

use std::time::Duration;

use crate::daemon::calls::conn_id::ConnId;
use crate::daemon::net::connection::CallState;
use crate::daemon::server::Server;
use crate::daemon::server::dispatch::permit::{DispatchPermit, Waiting};
use crate::daemon::view::leadership::LeaderWatch;
use crate::sys::clock;

/// The least time between two looks at the leaders that clients watch: a thousand watchers do not slow
/// a daemon down that grants thousands of requests per second.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// When a client that has not read what it was told last is looked at again.
const UNREAD_EVERY: Duration = Duration::from_millis(250);

impl Server {
    /// Lets a connection watch a leader until it is closed.
    pub(crate) fn watch_leader(&mut self, id: ConnId, watch: LeaderWatch) -> Waiting {
        if let Some(conn) = self.conns.get(id) {
            conn.set_doing(&DispatchPermit::new(), CallState::WatchesLeader(Box::new(watch)));
        }
        self.due.leaders.are_watched = true;
        Waiting::new()
    }

    /// Tells each client that watches a leader of which it was told something else.
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
        let CallState::WatchesLeader(watch) = conn.doing() else { return };
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
            conn.set_doing(&DispatchPermit::new(), watch);
        }
    }
}
