//! Limits how much of the table the requests of a user may take.

use crate::core::{Item, room_of};
use crate::daemon::server::Server;
use crate::protocol::{ErrorName, Failure};

impl Server {
    /// Checks whether a user may ask for these items. The check comes before the request is
    /// recorded, so over an engine it does not count requests that are still in flight.
    pub(crate) fn check_quota(
        &self,
        uid: u32,
        items: &[Item],
        is_lease: bool,
    ) -> Result<(), Failure> {
        let used = self.ledger.table.usage(uid);
        let most = self.limits.leases_per_user;
        if is_lease && used.leases >= most {
            let message = format!("uid {uid} holds {} leases, the limit is {most}", used.leases);
            return Err(refused(ErrorName::TooManyLeases, message, "leases_per_user"));
        }
        let most = self.limits.key_bytes_per_user;
        if used.key_bytes.saturating_add(room_of(items)) > most {
            let message = format!(
                "the keys that uid {uid} holds and waits for take {} bytes, the limit is {most}",
                used.key_bytes
            );
            return Err(refused(ErrorName::TooManyKeys, message, "key_bytes_per_user"));
        }
        Ok(())
    }
}

fn refused(name: ErrorName, message: String, setting: &str) -> Failure {
    tracing::warn!("{message}; refusing more");
    let hint = format!("release some first, or raise `{setting}` in the configuration");
    Failure::new(name, message).hint(hint)
}
