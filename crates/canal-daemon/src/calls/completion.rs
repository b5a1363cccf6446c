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
    /// A call of this connection continues.
    Call(ConnId, PendingCall),
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
    /// The connection whose call waits for the completion.
    pub(crate) fn conn(&self) -> Option<ConnId> {
        if let Self::Call(id, _) = self { Some(*id) } else { None }
    }
}

/// A call whose change is on its way to the table.
#[derive(Debug)]
pub(crate) enum PendingCall {
    /// The client asked for a lock.
    Ask(PendingAcquire),
    /// The client asked what it would be granted. The change itself does nothing.
    Question(Box<PendingAcquire>),
    /// The client released something.
    Release(PendingRelease),
    /// The client renewed a lease.
    Renew(PendingRenewal),
    /// The client stored a size of this key, or paused or resumed it.
    Resize(Key),
    /// The client changed the priority of a session that waits.
    Prioritize(PendingPriority),
    /// The client confirmed that it reported the grant of this request to the owner.
    Confirm(RequestId),
    /// The client confirmed this part of a request over nodes.
    ConfirmAt(RequestId),
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
    pub peer: Credentials,
    pub giving: Giving,
}

/// A renewal on its way to the table.
#[derive(Debug)]
pub(crate) struct PendingRenewal {
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
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingPriority {
    pub request: RequestId,
    pub before: i32,
    pub priority: i32,
}
