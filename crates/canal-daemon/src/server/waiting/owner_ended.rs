//! Handles the ends of owners, and of the descendants that keep a hold.
//!
//! Invariant: a grant that a client has received stays held until the owner has ended, and the
//! descendants that keep the hold.

use crate::server::Server;
use crate::wording::text::pid_of;
use canal_core::{Change, FrameId, Release, Token};

impl Server {
    /// Handles the end of a frame's process.
    pub(crate) fn end(&mut self, frame: FrameId) {
        let Some(state) = self.ledger.table.frame(frame) else { return };
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
        let orphaned: Vec<Token> =
            self.ledger.table.holds_in(frame).map(|hold| hold.token).collect();
        for token in orphaned {
            self.end_without_writers(token);
        }
    }

    /// Ends a hold that is kept for descendants if no descendant is left. Otherwise waits for the
    /// last descendant to end.
    pub(crate) fn end_without_writers(&mut self, token: Token) {
        let Some(tag) = self.ledger.table.hold(token).map(|hold| hold.asked.tag) else { return };
        if !self.children.await_end(token, tag, &mut self.owners) {
            let release = Release::Hold { token, forced: false };
            self.propose(Change::Release(release));
        }
    }

    /// Handles the loss of the last writer of a hold's FIFO, unless another writer has opened it
    /// since.
    pub(crate) fn end_of_writers(&mut self, token: Token) {
        if self.ledger.table.hold(token).is_some_and(|hold| hold.orphaned) {
            self.end_without_writers(token);
        }
    }

    /// Checks again the holds for which the daemon does not know whether descendants live.
    pub(crate) fn look_at_unsure(&mut self) {
        for token in self.children.unsure().clone() {
            self.end_of_writers(token);
        }
    }

    /// Handles a hold that has ended in the table.
    pub(crate) fn hold_ended(&mut self, token: Token) {
        self.children.remove(token, &mut self.owners);
        self.jobservers.hold_ended(token);
        // Until this host is a member, it may be reading another history of the log, in which the
        // token belongs to another process.
        if self.ledger.is_member()
            && let Some(cluster) = &mut self.cluster
        {
            cluster.hold_ended(&self.ledger.table, token);
        }
    }
}
