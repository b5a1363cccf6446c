//! Sends the grants and confirmations of leases once these survive a reboot.
//!
//! Invariant: the grant of a lease is sent only after the lease is durable. The grant of a part of
//! a request over nodes is sent at once, and its confirmation only after the lease is durable.

use std::io;

use crate::core::{RequestId, Token};
use crate::daemon::calls::conn_id::ConnId;
use crate::daemon::server::Server;
use crate::daemon::server::dispatch::step::Step;
use crate::daemon::waiters::leases::{LeaseNews, UnsyncedLease};
use crate::protocol::{ConfirmedAt, ErrorName, Failure};

impl Server {
    /// Confirms a client's part of a request over nodes, once the lease is durable.
    pub(crate) fn tell_confirmed(&mut self, id: ConnId, request: RequestId, token: Token) -> Step {
        if self.ledger.is_untold_lease(token) {
            return Step::Wait(self.wait_for_disk(id, request, LeaseNews::Confirmed(token)));
        }
        Step::reply(&ConfirmedAt { token: token.0 })
    }

    /// The next step of a call that waited for its lease to be durable. A lease that cannot be made
    /// durable is taken back.
    pub(crate) fn step_of_lease(
        &mut self,
        lease: &UnsyncedLease,
        stored: &io::Result<()>,
    ) -> Result<Step, Failure> {
        let UnsyncedLease { conn, request, news } = lease;
        if self.ledger.table.hold_of(*request).is_none() {
            let message = "the daemon took the lease back before its client got it";
            return Err(Failure::new(ErrorName::LeaseLost, message));
        }
        match stored {
            Ok(()) => Ok(match news {
                LeaseNews::Granted(granted) => {
                    self.send_grant_or_take_back(*conn, *request, granted.as_ref())
                }
                LeaseNews::Confirmed(token) => Step::reply(&ConfirmedAt { token: token.0 }),
            }),
            Err(error) => {
                let message = format!("cannot store the lease for a reboot: {error}");
                let failure = Failure::new(ErrorName::DiskFull, message);
                Ok(Step::GiveBack(*request, failure))
            }
        }
    }
}
