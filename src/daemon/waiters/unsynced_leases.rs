//! Sending the grants of leases once they survive a reboot.
//!
//! Invariant: the grant of a lease is sent after it is durable. All leases that await this become
//! durable together.

use crate::core::{Granted, RequestId};
use crate::daemon::net::conn_id::ConnId;
use crate::daemon::net::connection::CallState;
use crate::daemon::server::Server;
use crate::daemon::waiters::leases::UnsyncedLease;
use crate::protocol::{ErrorName, Failure};

impl Server {
    /// Sends the grant of a lease when it is durable. Until then the connection waits.
    pub(crate) fn tell_when_durable(
        &mut self,
        conn: ConnId,
        request: RequestId,
        granted: Option<&Granted>,
    ) {
        if let Some(conn) = self.conns.get(conn) {
            conn.doing = CallState::Stores(request);
        }
        self.waiters.await_sync(UnsyncedLease { conn, request, granted: granted.cloned() });
    }

    /// Makes the granted leases durable, and sends their grants. Returns whether there were any. A
    /// lease that cannot be made durable is taken back.
    pub(crate) fn tell_durable_leases(&mut self) -> bool {
        if !self.waiters.has_unsynced() {
            return false;
        }
        let stored = self.ledger.keep_leases();
        for UnsyncedLease { conn, request, granted } in self.waiters.take_unsynced() {
            self.done(conn);
            match &stored {
                _ if self.ledger.table.hold_of(request).is_none() => {
                    let message = "the lease was taken back before it was told";
                    self.fail(conn, &Failure::new(ErrorName::LeaseLost, message));
                }
                Ok(()) => self.send_grant_or_take_back(conn, request, granted.as_ref()),
                Err(error) => {
                    let message = format!("the lease cannot be kept over a reboot: {error}");
                    self.take_back(conn, request, &Failure::new(ErrorName::DiskFull, message));
                }
            }
        }
        true
    }
}
