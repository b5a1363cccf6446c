//! What follows from a change when it is in the log, by the call that asked for it.

use crate::core::{FrameId, Key, LeaseId, Outcome, Release as Giving, Revision, Table, View};
use crate::daemon::calls::pending_acquire::PendingAcquire;
use crate::daemon::net::conn_id::ConnId;
use crate::sys::peer::Credentials;

/// What is to be done when a change of ours has been applied.
#[derive(Debug)]
pub(crate) enum Completion {
    /// Nothing but what is done for the changes of others too.
    Nothing,
    /// Somebody asked.
    Ask(PendingAcquire),
    /// Somebody gives back.
    Release(PendingRelease),
    /// Somebody renews a lease.
    Renew(Box<PendingRenewal>),
    /// Somebody stores a view.
    Resize(Box<PendingResize>),
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

impl Completion {
    /// Whom it is for.
    pub(crate) fn conn(&self) -> Option<ConnId> {
        match self {
            Self::Nothing | Self::End { .. } => None,
            Self::Ask(newcomer) => Some(newcomer.conn),
            Self::Release(back) => Some(back.id),
            Self::Renew(renewing) => Some(renewing.id),
            Self::Resize(resizing) => Some(resizing.id),
            Self::Confirm { id } => Some(*id),
        }
    }
}

/// A change that was applied.
#[derive(Debug)]
pub(crate) struct Applied {
    /// Its place in the log.
    pub(crate) revision: Revision,
    /// What was decided by it.
    pub(crate) outcomes: Vec<Outcome>,
}

/// A release on its way to the table.
#[derive(Debug)]
pub(crate) struct PendingRelease {
    pub(crate) id: ConnId,
    pub(crate) peer: Credentials,
    pub(crate) giving: Giving,
}

/// A renewal on its way to the table.
#[derive(Debug)]
pub(crate) struct PendingRenewal {
    pub(crate) id: ConnId,
    pub(crate) peer: Credentials,
    pub(crate) lease: LeaseId,
    /// Whether it is to be given back then: it is renewed only to be found in the log.
    pub(crate) give_back: bool,
}

impl PendingRenewal {
    /// What came of it, by the table of some time after it. A lease that lives lived all the time
    /// since its renewal was asked for, so that it was renewed; one that does not is lost anyway.
    pub(crate) fn unseen(&self, table: &Table) -> Vec<Outcome> {
        let frame = table.lease(self.lease).and_then(|frame| table.frame(frame));
        let holding = frame.filter(|frame| table.holds_in(frame.id).next().is_some());
        let renewed = holding.and_then(|frame| {
            Some(Outcome::Renewed { frame: frame.id, renewal: frame.lease?.renewals })
        });
        vec![renewed.unwrap_or(Outcome::LeaseGone)]
    }
}

/// A resize on its way to the table.
#[derive(Debug)]
pub(crate) struct PendingResize {
    pub(crate) id: ConnId,
    pub(crate) key: Key,
    /// The view that was asked for; `None` forgets the one that was stored by hand.
    pub(crate) wanted: Option<View>,
    /// What the key has then.
    pub(crate) view: Option<View>,
}
