//! A request that may not wait, and is decided later because a holder in its way is about to end.

use std::time::Instant;

use crate::daemon::calls::conn_id::ConnId;
use crate::daemon::calls::pending_acquire::PendingAcquire;

/// A request that may not wait, deferred while a holder's process is exiting.
#[derive(Debug)]
pub(crate) struct DeferredRequest {
    pub(crate) newcomer: PendingAcquire,
    /// When it is asked again at the latest, and answered.
    pub(crate) until: Instant,
}

impl DeferredRequest {
    pub(crate) fn conn(&self) -> ConnId {
        self.newcomer.conn
    }
}
