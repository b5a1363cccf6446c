//! The permitted calls of a connection.

use serde::{Deserialize, Serialize};

/// `Restrict`: from now on, this connection may only request leases over nodes under these keys,
/// ask which node the daemon is, and confirm, renew, release and report on leases by their handle.
/// It cannot be undone; another `Restrict` can only remove more. Every other call is `Denied`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restrict {
    /// Each one is a key, for itself and the keys below it. A `/` at its end is ignored. An empty
    /// list permits every key.
    pub keys: Vec<String>,
}
