//! A request that may not wait, deferred because a holder that blocks it is about to end.

use std::time::Instant;

use crate::daemon::calls::conn_id::ConnId;
use crate::daemon::calls::pending_acquire::PendingAcquire;

/// A request that may not wait, deferred while a holder's process is exiting.
#[derive(Debug)]
pub(crate) struct DeferredRequest {
    pub(crate) newcomer: PendingAcquire,
    /// The latest time at which the daemon decides the request again and replies.
    pub(crate) until: Instant,
}

impl DeferredRequest {
    pub(crate) fn conn(&self) -> ConnId {
        self.newcomer.conn
    }
}
