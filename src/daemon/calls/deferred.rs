//! A request that may not wait, and is decided later, as a holder in its way is about to end.

use std::time::Instant;

use crate::daemon::calls::pending_acquire::PendingAcquire;
use crate::daemon::net::conn_id::ConnId;

/// A request that may not wait, put aside while a holder is on its way out.
#[derive(Debug)]
pub(crate) struct DeferredRequest {
    pub(crate) newcomer: PendingAcquire,
    /// It is tried again then at the latest, and answered.
    pub(crate) until: Instant,
}

impl DeferredRequest {
    pub(crate) fn conn(&self) -> ConnId {
        self.newcomer.conn
    }
}
