//! Serving a single call.

use crate::core::{Change, Key, Outcome, View};
use crate::daemon::calls::call::{Asked, Call};
use crate::daemon::calls::completion::{Applied, Completion, PendingResize};
use crate::daemon::calls::items;
use crate::daemon::fault::forgets_graphs;
use crate::daemon::limits::NAMES_MAX;
use crate::daemon::net::batch::Batch;
use crate::daemon::net::conn_id::ConnId;
use crate::daemon::net::connection::{CallState, Connection};
use crate::daemon::permissions::Action;
use crate::daemon::server::Server;
use crate::daemon::view::wording::disk_full;
use crate::protocol::service::{Description, Info, ServiceError, description};
use crate::protocol::{ErrorName, Failure, Resize, Resized, StatusQuery, Stopping};
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
        self.to_answer.push(id);
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

    fn status(
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

    fn resize(&mut self, id: ConnId, resize: &Resize) -> Result<(), Failure> {
        let (key, wanted) = items::stored_view(resize)?;
        self.may(id, Action::Resize, &key)?;
        self.ledger.admit_view(&key).map_err(|error| disk_full(&error))?;
        // A key whose stored view is forgotten falls back to the configured view.
        let view = wanted.or_else(|| self.limits.configured(&key));
        let change = Change::Resize { key: key.clone(), view };
        self.propose(change, Completion::Resize(Box::new(PendingResize { id, key, wanted, view })));
        Ok(())
    }

    /// A resize was applied to the table, or refused by it.
    pub(crate) fn resized(
        &mut self,
        resizing: PendingResize,
        applied: &Applied,
    ) -> Result<(), Failure> {
        let PendingResize { id, key, wanted, view } = resizing;
        let before = match applied.outcomes.first() {
            Some(Outcome::Resized { before }) => *before,
            Some(Outcome::ResizeRefused { in_use }) => {
                let message = format!("`{key}` is in use as another kind of lock, {in_use}");
                return Err(Failure::new(ErrorName::Mismatch, message)
                    .hint(format!("`canal status {key}` shows who uses it")));
            }
            _ => None,
        };
        if let Err(error) = self.ledger.store_view(&key, wanted) {
            let change = Change::Resize { key: key.clone(), view: before };
            self.propose(change, Completion::Nothing);
            let message = format!("the view of `{key}` cannot be kept: {error}");
            return Err(Failure::new(ErrorName::DiskFull, message));
        }
        let table = &self.ledger.table;
        let resized = Resized {
            key: key.to_string(),
            before: before.as_ref().map(View::to_string),
            now: view.as_ref().map(View::to_string),
            held: table.held_of(&key),
            waiting: table.waiting_for(&key) as u64,
        };
        tracing::info!(%key, view = resized.now.as_deref().unwrap_or("none"), "resized");
        self.tell(id, &resized)
    }

    fn stop(&mut self, id: ConnId, peer: Credentials) -> Result<(), Failure> {
        let owner = self.about.uid;
        if peer.uid != owner && peer.uid != 0 {
            let message = format!("uid {} may not stop the daemon here", peer.uid);
            return Err(Failure::new(ErrorName::Denied, message)
                .hint(format!("only root and uid {owner}, which runs the daemon, may")));
        }
        tracing::info!(uid = peer.uid, pid = peer.pid, "told to stop");
        self.stopping = true;
        self.tell(id, &Stopping { pid: self.about.pid })
    }
}
