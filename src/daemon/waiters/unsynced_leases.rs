//! Sending the grants of leases once they survive a reboot.
//!
//! Invariant: the grant of a lease is sent after it is durable.

use std::io;

use crate::daemon::calls::step::Step;
use crate::daemon::server::Server;
use crate::daemon::waiters::leases::UnsyncedLease;
use crate::protocol::{ErrorName, Failure};

impl Server {
    /// What happens to a call that waited for its lease to be durable. A lease that cannot be made
    /// durable is taken back.
    pub(crate) fn step_of_lease(
        &mut self,
        lease: &UnsyncedLease,
        stored: &io::Result<()>,
    ) -> Result<Step, Failure> {
        let UnsyncedLease { conn, request, granted } = lease;
        if self.ledger.table.hold_of(*request).is_none() {
            let message = "the lease was taken back before it was told";
            return Err(Failure::new(ErrorName::LeaseLost, message));
        }
        match stored {
            Ok(()) => Ok(self.send_grant_or_take_back(*conn, *request, granted.as_ref())),
            Err(error) => {
                let message = format!("the lease cannot be kept over a reboot: {error}");
                let failure = Failure::new(ErrorName::DiskFull, message);
                Ok(Step::GiveBack(*request, failure))
            }
        }
    }
}
