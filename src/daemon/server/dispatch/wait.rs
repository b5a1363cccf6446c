//! Notes what a call waits for.

use crate::core::RequestId;
use crate::daemon::calls::conn_id::ConnId;
use crate::daemon::calls::deferred::DeferredRequest;
use crate::daemon::calls::in_flight::{Awaiting, LogWait};
use crate::daemon::calls::pending_acquire::{Patience, PendingAcquire};
use crate::daemon::net::connection::CallState;
use crate::daemon::server::Server;
use crate::daemon::server::dispatch::permit::{DispatchPermit, Waiting};
use crate::daemon::view::leadership::LeaderWatch;
use crate::daemon::view::selection::Selection;
use crate::daemon::waiters::leases::{LeaseNews, UnsyncedLease};
use crate::protocol::Failure;
use crate::sys::clock;

impl Server {
    /// Makes a call wait until its request is granted or refused. With `more`, the client takes
    /// progress messages.
    pub(crate) fn wait_for_grant(&mut self, id: ConnId, request: RequestId, more: bool) -> Waiting {
        self.waiters.attach(request, id, more);
        if let Some(conn) = self.conns.get(id) {
            conn.set_doing(&DispatchPermit::new(), CallState::Waits(request));
            conn.save_memory();
        }
        Waiting::new()
    }

    /// Makes a call wait for the log. Later calls of the connection have to wait, too.
    pub(crate) fn wait_for_log(
        &mut self,
        id: ConnId,
        what: Awaiting,
        patience: Option<Patience>,
    ) -> Waiting {
        if let Some(conn) = self.conns.get(id) {
            conn.set_doing(&DispatchPermit::new(), CallState::InFlight);
            // The client has waited since its call began, even if the call first waited for
            // something else.
            let since = *conn.wordless_since.get_or_insert_with(clock::boottime_ms);
            self.in_flight.begin_wait(id, LogWait { what, since, patience });
        }
        Waiting::new()
    }

    /// Makes a request wait until this host is a member and may propose it.
    ///
    /// # Errors
    /// Without an engine, there is nothing to wait for.
    pub(crate) fn wait_for_membership(
        &mut self,
        newcomer: PendingAcquire,
    ) -> Result<Waiting, Failure> {
        let id = newcomer.conn;
        if self.conns.peek(id).is_none_or(|conn| conn.heard_end || conn.closing) {
            if let Some(conn) = self.conns.get(id) {
                conn.set_doing(&DispatchPermit::new(), CallState::Nothing);
            }
            return Ok(Waiting::new());
        }
        if self.cluster.is_none() {
            return Err(self.not_a_member());
        }
        let (what, patience) = (Awaiting::MembershipOf(newcomer.request.tag), newcomer.patience());
        self.in_flight.await_membership(newcomer);
        Ok(self.wait_for_log(id, what, patience))
    }

    /// Defers a request that may not wait.
    pub(crate) fn wait_for_an_end(&mut self, deferred: DeferredRequest) -> Waiting {
        self.history.take_back(deferred.newcomer.request.tag);
        if let Some(conn) = self.conns.get(deferred.conn()) {
            conn.set_doing(&DispatchPermit::new(), CallState::Deferred);
        }
        self.waiters.defer(deferred);
        Waiting::new()
    }

    /// Makes a call wait until its lease is durable. The client then gets `news`.
    pub(crate) fn wait_for_disk(
        &mut self,
        conn: ConnId,
        request: RequestId,
        news: LeaseNews,
    ) -> Waiting {
        if let Some(conn) = self.conns.get(conn) {
            conn.set_doing(&DispatchPermit::new(), CallState::Stores(request));
        }
        self.waiters.await_sync(UnsyncedLease { conn, request, news });
        Waiting::new()
    }

    /// Makes a call wait until the history thread has found the answer.
    pub(crate) fn wait_for_history(&mut self, id: ConnId) -> Waiting {
        if let Some(conn) = self.conns.get(id) {
            conn.set_doing(&DispatchPermit::new(), CallState::History);
        }
        Waiting::new()
    }

    /// Makes a call wait until a thread has read the configuration.
    pub(crate) fn wait_for_configuration(&mut self, id: ConnId) -> Waiting {
        if let Some(conn) = self.conns.get(id) {
            conn.set_doing(&DispatchPermit::new(), CallState::Configuration);
        }
        Waiting::new()
    }

    /// Queues a connection for a report.
    pub(crate) fn await_report(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get(id) else { return };
        if !std::mem::replace(&mut conn.awaits_report, true) {
            self.reports.add(id, conn.peer.uid, conn.unsent());
        }
    }

    /// Lets a connection watch the status until it is closed.
    pub(crate) fn watch_status(&mut self, id: ConnId, selection: Selection) -> Waiting {
        if let Some(conn) = self.conns.get(id) {
            conn.set_doing(&DispatchPermit::new(), CallState::Watches(Box::new(selection)));
        }
        self.due.watched = true;
        Waiting::new()
    }

    /// Lets a connection watch a leader until it is closed.
    pub(crate) fn watch_leader(&mut self, id: ConnId, watch: LeaderWatch) -> Waiting {
        if let Some(conn) = self.conns.get(id) {
            conn.set_doing(&DispatchPermit::new(), CallState::WatchesLeader(Box::new(watch)));
        }
        self.due.leaders.are_watched = true;
        Waiting::new()
    }

    /// Notes that the current call of a connection has no client left. Returns what the call waited
    /// for. A call that waits for the log or for its turn continues to wait.
    pub(crate) fn abandon_call(&mut self, id: ConnId) -> CallState {
        let Some(conn) = self.conns.get(id) else { return CallState::Nothing };
        match conn.doing() {
            CallState::InFlight => CallState::InFlight,
            CallState::Report => CallState::Report,
            _ => conn.set_doing(&DispatchPermit::new(), CallState::Nothing),
        }
    }
}
