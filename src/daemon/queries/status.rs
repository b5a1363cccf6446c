//! The status: the state of one lock and those below it, or of all.

use crate::core::Key;
use crate::daemon::calls::items;
use crate::daemon::limits::NAMES_MAX;
use crate::daemon::net::conn_id::ConnId;
use crate::daemon::net::connection::{CallState, Connection};
use crate::daemon::server::Server;
use crate::protocol::{Failure, StatusQuery};
use crate::sys::peer::Credentials;

impl Server {
    pub(crate) fn status(
        &mut self,
        id: ConnId,
        peer: Credentials,
        query: &StatusQuery,
        more: bool,
    ) -> Result<(), Failure> {
        if let Some(max) = query.names_max {
            let max = usize::try_from(max).unwrap_or(usize::MAX).min(NAMES_MAX);
            let keys = self.shown(peer.uid).names(query.key.as_deref().unwrap_or(""), max);
            return self.tell(id, &self.status_of(keys, 0));
        }
        let key = query.key.as_deref().map(items::key).transpose()?;
        self.show_status(id, peer.uid, key.as_ref(), more);
        if more
            && let Some(conn) = self.conns.get(id)
            && !conn.heard_end
        {
            conn.doing = CallState::Watches(key);
            self.due.watched = true;
        }
        Ok(())
    }

    /// Sends the state of the locks that `key` covers, or of all locks.
    pub(crate) fn show_status(
        &mut self,
        id: ConnId,
        viewer: u32,
        key: Option<&Key>,
        continues: bool,
    ) {
        let Some(conn) = self.conns.get(id) else { return };
        if conn.oneway {
            conn.unanswered &= continues;
            return;
        }
        let (shown, left_out) = self.shown(viewer).keys(key);
        let reply = Connection::written(&self.status_of(shown, left_out), continues);
        if let Some(conn) = self.conns.get(id) {
            conn.put_written(reply, continues);
        }
    }
}
