//! The ends of owners, and of the descendants that holds are kept for.
//!
//! Invariant: what a client was told stays held until the owner has ended, and the descendants that the hold
//! is kept for.

use crate::core::{Change, FrameId, Release, Token};
use crate::daemon::server::Server;
use crate::daemon::wording::text::pid_of;

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

    /// Handles the end of a frame's process, applied to the table: what is left is kept for its
    /// descendants.
    pub(crate) fn ended(&mut self, frame: FrameId) {
        let orphaned: Vec<Token> =
            self.ledger.table.holds_in(frame).map(|hold| hold.token).collect();
        for token in orphaned {
            self.end_without_writers(token);
        }
    }

    /// Ends a hold that is kept for descendants if no descendant is left. Otherwise waits for the
    /// last descendant.
    pub(crate) fn end_without_writers(&mut self, token: Token) {
        let Some(tag) = self.ledger.table.hold(token).map(|hold| hold.asked.tag) else { return };
        if !self.children.await_end(token, tag, &mut self.owners) {
            let release = Release::Hold { token, forced: false };
            self.propose(Change::Release(release));
        }
    }

    /// Handles the loss of the last writer of a hold's FIFO, unless another writer has come since.
    pub(crate) fn end_of_writers(&mut self, token: Token) {
        if self.ledger.table.hold(token).is_some_and(|hold| hold.orphaned) {
            self.end_without_writers(token);
        }
    }

    /// Checks again the holds for which the daemon could not find out, or could not be told,
    /// whether descendants live.
    pub(crate) fn look_at_unsure(&mut self) {
        for token in self.children.unsure().clone() {
            self.end_of_writers(token);
        }
    }

    /// Handles a hold that has ended in the table.
    pub(crate) fn hold_ended(&mut self, token: Token) {
        self.children.remove(token, &mut self.owners);
        self.jobservers.hold_ended(token);
        // Until this host is a member, the log that it reads may be another history, in which the
        // token is that of another process.
        if self.ledger.is_member()
            && let Some(cluster) = &mut self.cluster
        {
            cluster.hold_ended(&self.ledger.table, token);
        }
    }
}
