//! Changes on their way into the log, and what follows when they are in it.
//!
//! Invariant: what follows from a change is told and done only after it was applied at its place
//! in the log.

use super::acquire::Newcomer;
use super::conn::ConnId;
use super::release::GivingBack;
use super::renew::Renewing;
use super::serve::Resizing;
use super::server::Server;
use crate::core::{Change, FrameId, Outcome, Revision};

/// What is to be done when a change of ours has been applied.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are requests, and few wait here at once")]
pub(super) enum Then {
    /// Nothing but what is done for the changes of others too.
    Nothing,
    /// Somebody asked.
    Ask(Newcomer),
    /// Somebody gives back.
    Release(Box<GivingBack>),
    /// Somebody renews a lease.
    Renew(Box<Renewing>),
    /// Somebody stores a view.
    Resize(Box<Resizing>),
    /// An asker told its owner of the grant.
    Confirm {
        /// Who is to be told that this is certain now.
        id: ConnId,
    },
    /// The process of a frame has ended.
    End {
        /// Which one.
        frame: FrameId,
    },
}

/// A change that was applied.
#[derive(Debug)]
pub(super) struct Applied {
    /// Its place in the log.
    pub(super) revision: Revision,
    /// What was decided by it.
    pub(super) outcomes: Vec<Outcome>,
}

impl Server {
    /// Brings a change into the log. What follows is done when it is applied.
    pub(super) fn propose(&mut self, change: Change, then: Then) {
        let before = match &then {
            Then::Release(back) => self.holds_at_stake(&back.giving),
            _ => Vec::new(),
        };
        let applied = self.ledger.apply(change);
        self.changed |= !applied.outcomes.is_empty();
        let owner_ended = matches!(then, Then::End { .. });
        for outcome in &applied.outcomes {
            self.note(outcome, owner_ended);
        }
        let (id, done) = match then {
            Then::Nothing => return,
            Then::Ask(newcomer) => return self.asked(newcomer, applied),
            Then::End { frame } => return self.ended(frame),
            Then::Release(back) => (back.id, self.given_back(*back, &before, &applied)),
            Then::Renew(renewing) => (renewing.id, self.renewed(*renewing, &applied)),
            Then::Resize(resizing) => (resizing.id, self.resized(*resizing, &applied)),
            Then::Confirm { id } => (id, self.confirmed(id)),
        };
        if let Err(failure) = done {
            self.fail(id, &failure);
        }
    }
}
