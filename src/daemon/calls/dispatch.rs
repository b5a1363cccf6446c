//! Serving a single call: each message goes to its own file in `requests` or `queries`.

use crate::daemon::calls::call::{Asked, Call};
use crate::daemon::fault::forgets_graphs;
use crate::daemon::net::batch::Batch;
use crate::daemon::net::conn_id::ConnId;
use crate::daemon::net::connection::Connection;
use crate::daemon::server::Server;
use crate::protocol::Failure;
use crate::protocol::service::{Description, Info, ServiceError, description};
use crate::sys::peer::Credentials;

impl Server {
    /// Serves the next call of a connection. The call was read for this batch, or for an earlier
    /// one.
    pub(crate) fn serve_one(&mut self, batch: &Batch, id: ConnId) {
        let needs_log =
            |conn: &Connection| conn.calls.front().is_some_and(|it| it.asked.needs_log());
        if !self.ledger.is_member() && self.conns.peek(id).is_some_and(needs_log) {
            return self.put_off(id);
        }
        let is_report =
            |conn: &Connection| conn.calls.front().is_some_and(|it| it.asked.is_report());
        if self.conns.peek(id).is_some_and(is_report) {
            return self.put_off_report(id);
        }
        self.serve_next(batch, id);
    }

    /// Serves the next call of a connection, even if it asks for a report or needs the log.
    pub(crate) fn serve_next(&mut self, _: &Batch, id: ConnId) {
        let Some(conn) = self.conns.get(id) else { return };
        let Some(call) = conn.calls.pop_front() else { return };
        conn.oneway = call.oneway;
        conn.unanswered = true;
        // A client that calls again has read the earlier reply, or does not care about it.
        conn.untold = None;
        let peer = conn.peer;
        self.conns.to_answer.push(id);
        if let Err(failure) = self.answer(id, peer, call) {
            self.fail(id, &failure);
        }
    }

    fn answer(&mut self, id: ConnId, peer: Credentials, call: Call) -> Result<(), Failure> {
        let Call { asked, more, fds, .. } = call;
        match asked {
            Asked::Acquire(acquire) => self.acquire(id, acquire, more, fds),
            Asked::Confirm(confirm) => self.confirm(id, peer, &confirm),
            Asked::Page(query) => self.page(id, &query),
            Asked::Release(release) => self.release(id, peer, &release, fds),
            Asked::Renew(renew) => self.renew(id, peer, &renew),
            Asked::Resize(resize) => self.resize(id, &resize),
            Asked::Status(query) => self.status(id, peer, &query, more),
            Asked::Stop(_) => self.stop(id, peer),
            Asked::Why(query) => self.why(id, peer, &query),
            Asked::WouldRelease(release) => self.would_release(id, peer, &release, fds),
            Asked::Graph(_) if forgets_graphs() => Ok(()),
            Asked::Graph(_) => self.graph(id, peer),
            Asked::Info => self.tell(id, &Info::ours()),
            Asked::Description(query) => match description(&query.interface) {
                Some(text) => self.tell(id, &Description { description: text.to_owned() }),
                None => {
                    let interface = query.interface;
                    self.tell_wrong(id, &ServiceError::InterfaceNotFound { interface })
                }
            },
            Asked::Wrong(error) => self.tell_wrong(id, &error),
            Asked::Junk(failure) => {
                if let Some(conn) = self.conns.get(id) {
                    conn.give_up(&failure);
                }
                Ok(())
            }
        }
    }

    /// Sends the final reply to a call.
    #[expect(clippy::unnecessary_wraps, reason = "the last word of methods that may fail")]
    pub(crate) fn tell<T: serde::Serialize>(
        &mut self,
        id: ConnId,
        reply: &T,
    ) -> Result<(), Failure> {
        if let Some(conn) = self.conns.get(id) {
            conn.reply(reply, false);
        }
        Ok(())
    }

    #[expect(clippy::unnecessary_wraps, reason = "the last word of methods that may fail")]
    fn tell_wrong(&mut self, id: ConnId, error: &ServiceError) -> Result<(), Failure> {
        if let Some(conn) = self.conns.get(id) {
            conn.fail_service(error);
        }
        Ok(())
    }
}
