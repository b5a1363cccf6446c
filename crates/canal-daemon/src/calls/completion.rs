//! The daemon's work for a call once its change is in the log.

use crate::calls::conn_id::ConnId;
use crate::calls::pending_acquire::PendingAcquire;
use canal_core::{
    Change, FrameId, Key, LeaseId, Outcome, Release as Giving, RequestId, Revision, Table, Tag,
};
use canal_sys::peer::Credentials;

/// The change of a question: it has no effect, and only takes a place in the log. The embedded
/// journal does not record it.
pub(crate) const VOID: Change = Change::Confirm { request: RequestId(0) };

/// The work to do when a change of this host has been applied.
#[derive(Debug)]
pub(crate) enum Completion {
    /// Only the work that changes of other hosts need, too.
    Nothing,
    /// A client asked for a lock.
    Ask(PendingAcquire),
    /// A client asked what it would be granted. The change itself does nothing.
    Question(Box<PendingAcquire>),
    /// A client released something.
    Release(PendingRelease),
    /// A client renewed a lease.
    Renew(Box<PendingRenewal>),
    /// A client stored a size, or paused or resumed a key.
    Resize(Box<PendingResize>),
    /// A client changed the priority of a session that waits.
    Prioritize(Box<PendingPriority>),
    /// A client confirmed that it reported the grant to the owner.
    Confirm {
        /// The connection that gets the reply.
        id: ConnId,
        /// The request that was granted.
        request: RequestId,
    },
    /// A client confirmed its part of a request over nodes.
    ConfirmAt {
        /// The connection that gets the reply.
        id: ConnId,
        /// The confirmed part.
        request: RequestId,
    },
    /// A stopped waiter ahead of another one was suspended: the next one ahead may be stopped, too.
    CheckAhead {
        /// The waiter that is behind.
        behind: RequestId,
        /// How many more may be checked for it.
        left: usize,
    },
    /// A build gave up a slot, which is meant for this build.
    JobSlot { build: Tag },
    /// This build asked for one more job token.
    JobToken { build: Tag },
    /// The process of a frame has ended.
    End {
        /// The frame of that process.
        frame: FrameId,
    },
}

impl Completion {
    /// The connection that waits for the completion.
    pub(crate) fn conn(&self) -> Option<ConnId> {
        match self {
            Self::Nothing
            | Self::CheckAhead { .. }
            | Self::JobSlot { .. }
            | Self::JobToken { .. }
            | Self::End { .. } => None,
            Self::Ask(newcomer) => Some(newcomer.conn),
            Self::Question(newcomer) => Some(newcomer.conn),
            Self::Release(back) => Some(back.id),
            Self::Renew(renewing) => Some(renewing.id),
            Self::Resize(resizing) => Some(resizing.id),
            Self::Prioritize(pending) => Some(pending.id),
            Self::Confirm { id, .. } | Self::ConfirmAt { id, .. } => Some(*id),
        }
    }
}

/// A change that was applied.
#[derive(Debug)]
pub(crate) struct Applied {
    /// Its position in the log.
    pub revision: Revision,
    /// Its results.
    pub outcomes: Vec<Outcome>,
}

/// A release on its way to the table.
#[derive(Debug)]
pub(crate) struct PendingRelease {
    pub id: ConnId,
    pub peer: Credentials,
    pub giving: Giving,
}

/// A renewal on its way to the table.
#[derive(Debug)]
pub(crate) struct PendingRenewal {
    pub id: ConnId,
    pub peer: Credentials,
    pub lease: LeaseId,
    /// Whether the daemon releases the lease afterwards. It renews the lease only to find it in the
    /// log.
    pub give_back: bool,
    /// Whether the new TTL must be durable before the reply.
    pub keeps_ttl: bool,
}

impl PendingRenewal {
    /// The outcome of a renewal that this host did not see, derived from a later table. A lease
    /// that lives now has lived ever since the client asked for the renewal, so the renewal
    /// succeeded. A lease that does not live now is lost in any case.
    pub(crate) fn unseen(&self, table: &Table) -> Vec<Outcome> {
        let frame = table.lease(self.lease).and_then(|frame| table.frame(frame));
        let holding = frame.filter(|frame| table.holds_in(frame.id).next().is_some());
        let renewed = holding.and_then(|frame| {
            Some(Outcome::Renewed { frame: frame.id, renewal: frame.lease?.renewals })
        });
        vec![renewed.unwrap_or(Outcome::LeaseGone)]
    }
}

/// A change of priority on its way to the table.
#[derive(Debug)]
pub(crate) struct PendingPriority {
    pub id: ConnId,
    pub request: RequestId,
    pub before: i32,
    pub priority: i32,
}

/// A resize on its way to the table.
#[derive(Debug)]
pub(crate) struct PendingResize {
    pub id: ConnId,
    pub key: Key,
}
