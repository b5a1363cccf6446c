//! Checks whether a request can have a jobserver.

use crate::core::{Ask, Item};
use crate::daemon::server::Server;
use crate::protocol::{Acquire, ErrorName, Failure};

impl Server {
    /// Whether a request can have a jobserver.
    ///
    /// # Errors
    /// The daemon works over an engine, or the request is not for one slot of one key that lasts
    /// while descendants live.
    pub(crate) fn check_jobserver(
        &self,
        acquire: &Acquire,
        items: &[Item],
        is_part: bool,
    ) -> Result<(), Failure> {
        if self.cluster.is_some() {
            let message = "a daemon with an engine has no jobserver";
            let hint = "leave out --jobserver, or use a daemon without an engine";
            return Err(Failure::new(ErrorName::Unsupported, message).hint(hint));
        }
        let is_one_slot = matches!(items, [Item { ask: Ask::Counted { count: 1, .. }, .. }]);
        let is_plain = acquire.owner_fd.is_none() && acquire.lease.is_none() && !is_part;
        if is_one_slot && is_plain && acquire.with_children {
            return Ok(());
        }
        let message = "`jobserver` needs one slot of one key, `with_children`, and the calling \
                       process as the owner";
        Err(Failure::new(ErrorName::BadRequest, message))
    }
}
