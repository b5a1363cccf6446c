//! What a connection may do from now on.

use serde::{Deserialize, Serialize};

/// `Restrict`: from now on this connection may only ask for leases over nodes under these keys,
/// ask which node the daemon is, and confirm, renew, release and report on leases by their handle.
/// It cannot be undone; another `Restrict` may only take more away. Every other call is `Denied`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restrict {
    /// Each a key, which stands for itself and the keys below it. A `/` at its end is ignored. None
    /// at all stands for every key.
    pub keys: Vec<String>,
}
