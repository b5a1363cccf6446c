//! Makes calls wait.

use crate::calls::conn_id::ConnId;
use crate::calls::pending_acquire::{Patience, PendingAcquire};
use crate::net::call_state::{Awaiting, CallState, LogWait};
use crate::server::Server;
use crate::server::dispatch::step::Step;
use canal_core::RequestId;
use canal_protocol::Failure;
use canal_sys::clock;

impl Server {
    /// Makes a call wait until its request is granted or refused. With `more`, the client takes
    /// progress messages.
    pub(crate) fn wait_for_grant(&mut self, id: ConnId, request: RequestId, more: bool) -> Step {
        self.waiters.attach(request, id, more);
        if let Some(conn) = self.conns.get(id) {
            conn.save_memory();
        }
        Step::Wait(CallState::Waits(request))
    }

    /// Makes a call wait for the log. Later calls of the connection have to wait, too.
    pub(crate) fn wait_for_log(
        &mut self,
        id: ConnId,
        what: Awaiting,
        patience: Option<Patience>,
    ) -> Step {
        // The client has waited since its call began, even if the call first waited for something
        // else.
        let conn = self.conns.get(id);
        let since = conn.map(|it| *it.wordless_since.get_or_insert_with(clock::boottime_ms));
        let since = since.unwrap_or_default();
        Step::Wait(CallState::Log(LogWait { what, since, patience }))
    }

    /// Makes a request wait until this host is a member and may propose it.
    ///
    /// # Errors
    /// Without an engine, there is nothing to wait for.
    pub(crate) fn wait_for_membership(
        &mut self,
        newcomer: PendingAcquire,
    ) -> Result<Step, Failure> {
        let id = newcomer.conn;
        if self.conns.peek(id).is_none_or(|conn| conn.heard_end() || conn.is_closing()) {
            return Ok(Step::Leave);
        }
        if self.cluster.is_none() {
            return Err(self.not_a_member());
        }
        let patience = newcomer.patience();
        Ok(self.wait_for_log(id, Awaiting::MembershipOf(Box::new(newcomer)), patience))
    }
}
