//! Permission to read connections.

use crate::daemon::calls::conn_id::ConnId;

/// Permission to read connections: only [`Batch::take`](super::batch::Batch::take) has it.
#[derive(Debug)]
pub(crate) struct ReadPermit(());

impl ReadPermit {
    /// For [`Batch::take`](super::batch::Batch::take) alone.
    pub(in crate::daemon::net) fn begin() -> Self {
        Self(())
    }

    #[cfg(test)]
    pub(crate) fn in_a_test() -> Self {
        Self(())
    }
}

/// A connection of which nothing more is expected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disconnected {
    pub(crate) id: ConnId,
    /// Whether it is certain that the peer did not read all that was sent.
    pub(crate) unread: bool,
}
