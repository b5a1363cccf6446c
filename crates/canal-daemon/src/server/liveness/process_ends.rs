//! Handles processes of holders and waiters that end, and the ends of connections.
//!
//! Invariant: a grant that a client has received stays held until the owner and all descendants
//! that keep the hold have ended.

use crate::calls::call::{Asked, ConnId};
use crate::history::recorder::Cause;
use crate::net::call_state::{Awaiting, CallState, LogWait, PendingCall};
use crate::processes::identify_owner::find;
use crate::server::Server;
use crate::wording::pid_of;
use canal_core::{Change, FrameId, Owner, Release, RequestId, Token};
use canal_sys::process::Found;

impl Server {
    /// Handles the end of a frame's process.
    pub(crate) fn end(&mut self, frame: FrameId) {
        let Some(state) = self.decide.table().frame(frame) else { return };
        tracing::debug!(
            session = %format_args!("s{frame}"),
            pid = pid_of(&state.owner),
            "the owner has ended"
        );
        self.owners.forget(frame);
        self.propose(Change::End { frame });
    }

    /// Handles the end of a frame's process after it was applied to the table: the remaining holds
    /// are kept for its descendants.
    pub(crate) fn ended(&mut self, frame: FrameId) {
        let orphaned = self.decide.table().holds_in(frame).map(|hold| hold.token);
        let orphaned: Vec<Token> = orphaned.collect();
        orphaned.into_iter().for_each(|token| self.end_without_writers(token));
    }

    /// Ends a hold that is kept for descendants if no descendant is left. Otherwise waits for the
    /// last descendant to end.
    fn end_without_writers(&mut self, token: Token) {
        let Some(tag) = self.decide.table().hold(token).map(|hold| hold.asked.tag) else { return };
        if !self.children.await_end(token, tag, &mut self.owners) {
            self.propose(Change::Release(Release::Hold { token, forced: false }));
        }
    }

    /// Handles the loss of the last writer of a hold's FIFO, unless another writer has opened it
    /// since.
    pub(crate) fn end_of_writers(&mut self, token: Token) {
        if self.decide.table().hold(token).is_some_and(|hold| hold.orphaned) {
            self.end_without_writers(token);
        }
    }

    /// Handles a hold that has ended in the table.
    pub(crate) fn hold_ended(&mut self, token: Token) {
        self.children.remove(token, &mut self.owners);
        self.jobservers.hold_ended(token);
        self.decide.hold_ended(token);
    }

    /// Looks again for the processes whose life is uncertain.
    pub(crate) fn verify_again(&mut self) {
        for frame in self.owners.unverified.clone() {
            let Some(state) = self.decide.table().frame(frame) else {
                self.owners.forget(frame);
                continue;
            };
            let Owner::Process(process) = state.owner else { continue };
            match find(process) {
                Found::Same(pidfd) => {
                    if let Err(error) = self.owners.watch(frame, None, pidfd) {
                        tracing::debug!(%error, "still unverified");
                    }
                }
                Found::Gone => self.end(frame),
                Found::Unknown(_) => {}
            }
        }
    }

    /// Watches the holds that last only while descendants live.
    pub(crate) fn await_orphans(&mut self) {
        let here = self.decide.host();
        let orphaned =
            self.decide.table().holds().filter(|hold| hold.asked.host == here && hold.orphaned);
        let orphaned: Vec<Token> = orphaned.map(|hold| hold.token).collect();
        orphaned.into_iter().for_each(|token| self.end_without_writers(token));
    }
}

/// Handles the ends of connections.
///
/// Invariant: the end of a connection withdraws requests and grants that its client has not
/// received. A grant that the client has received stays held.
impl Server {
    /// Handles a client that is gone: withdraws its waiting request, and takes back a grant that it
    /// has not received.
    pub(crate) fn disconnect(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get(id) else { return };
        let untold = conn.untold.take().filter(|_| conn.is_reset || !conn.is_flushed());
        if untold.is_some() {
            conn.discard_output();
        }
        let provisional = std::mem::take(&mut conn.provisional);
        // `Abandon` is queued behind the call that waited, so it was not served.
        let is_abandoned = conn.calls.iter().any(|call| matches!(call.asked, Asked::Abandon(_)));
        let mut gone: Vec<RequestId> = provisional.into_iter().chain(untold).collect();
        // A client that has only stopped sending still gets the answers on which nothing depends.
        let goes_on = match conn.state() {
            CallState::Log(LogWait { what: Awaiting::Change(_, call), .. }) => {
                // The change completes even if its client no longer waits for the answer.
                !matches!(call, PendingCall::Ask(_)) && !conn.is_closing
            }
            CallState::Report(None) | CallState::History | CallState::Configuration => true,
            _ => false,
        };
        let state =
            if goes_on { CallState::Idle } else { self.conns.set_state(id, CallState::Idle) };
        match state {
            #[cfg(test)]
            CallState::Waits(_)
                if crate::sim::is_broken(crate::sim::Rule::DeadWaitersAreWithdrawn) => {}
            CallState::Waits(request) => {
                if is_abandoned {
                    self.observe.history.expect_end(request, Cause::Abandoned);
                }
                gone.push(request);
            }
            CallState::Stores(request, _) => gone.push(request),
            CallState::Log(wait) => {
                if let (Awaiting::Membership, Some(conn)) = (wait.what, self.conns.get(id)) {
                    conn.calls.clear();
                }
            }
            _ => {}
        }
        for request in gone {
            self.propose(Change::Withdraw { request });
        }
        self.conns.activate(id);
    }
}
