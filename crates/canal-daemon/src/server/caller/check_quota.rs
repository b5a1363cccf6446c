//! Checks how much of the table and of the journal the requests of a user may take.

use crate::server::Server;
use crate::server::call_step::Result;
use crate::store::table_and_log::disk_full;
use canal_core::{Item, Wait, room_of};
use canal_protocol::{ErrorName, Failure};

impl Server {
    /// Checks whether a user may ask for another lease.
    pub(crate) fn check_leases(&self, uid: u32) -> Result<()> {
        let (used, most) =
            (self.decide.table().usage(uid), self.effective.config.limits.leases_per_user);
        if used.leases >= most {
            let message = format!("uid {uid} holds {} leases; the limit is {most}", used.leases);
            return Err(too_much(ErrorName::TooManyLeases, message, "leases_per_user"));
        }
        Ok(())
    }

    /// Checks whether a user may ask for these items. The check comes before the request is
    /// recorded, so over an engine it does not count requests that are still in flight.
    pub(crate) fn check_quota(&self, uid: u32, items: &[Item]) -> Result<()> {
        let used = self.decide.table().usage(uid);
        let most = self.effective.config.limits.key_bytes_per_user;
        if used.key_bytes.saturating_add(room_of(items)) > most {
            let message = format!(
                "the keys that uid {uid} holds and waits for take up {} bytes; the limit is {most}",
                used.key_bytes
            );
            return Err(too_much(ErrorName::TooManyKeys, message, "key_bytes_per_user"));
        }
        Ok(())
    }

    /// The limit on a user's waiting requests, if a request that would wait exceeds it.
    pub(crate) fn crowd(&self, wait: Wait, uid: u32) -> Option<usize> {
        let most = self.effective.config.limits.waiters_per_user;
        let waiting = || self.waiters.of_user(uid) + self.decide.in_flight.of_user(uid);
        (wait != Wait::No && waiting() >= most).then_some(most)
    }

    /// Reserves room in the journal for an entry for which no request has reserved any.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Result<()> {
        self.decide.ledger_mut().admit_bytes(bytes).map_err(|error| disk_full(&error))
    }
}

/// The failure for a user who would take more than the limit.
fn too_much(name: ErrorName, message: String, setting: &str) -> Failure {
    tracing::warn!("{message}; refusing more");
    let hint = format!("release some first, or raise `{setting}` in the configuration");
    Failure::new(name, message).hint(hint)
}
