//! The failure for a client if the disk has no room for the record of its request.

use canal_log::journal::NoRoom;
use canal_protocol::{ErrorName, Failure};

/// The failure for a client whose request cannot be recorded.
pub(crate) fn disk_full(error: &NoRoom) -> Failure {
    tracing::warn!(%error, "refusing a request");
    Failure::new(ErrorName::DiskFull, error.to_string())
        .hint("make room and try again; no hold is lost")
}
