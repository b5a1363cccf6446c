//! What only the dispatcher can do, and what others have to show to it.

use crate::daemon::net::permits::MayDispatch;

/// Permission to end a call or to say what it waits for. Only the dispatcher has it.
#[derive(Debug)]
pub(crate) struct DispatchPermit(());

impl MayDispatch for DispatchPermit {}

impl DispatchPermit {
    /// For the dispatcher alone.
    pub(in crate::daemon::server::dispatch) fn new() -> Self {
        Self(())
    }
}

/// Shows that a call waits for something that will end it, or that no client is left to be
/// answered. Only the dispatcher makes it, when it notes what the call waits for.
#[derive(Debug)]
#[must_use = "the dispatcher wants to see it"]
pub(crate) struct Waiting(());

impl Waiting {
    /// For the dispatcher alone.
    pub(in crate::daemon::server::dispatch) fn new() -> Self {
        Self(())
    }
}
