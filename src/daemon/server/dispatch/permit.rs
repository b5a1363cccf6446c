//! Permits: types that only the dispatcher can make, and that other code demands.

use crate::daemon::net::permits::MayDispatch;

/// Permission to end a call, or to set what it waits for. Only the dispatcher has it.
#[derive(Debug)]
pub(crate) struct DispatchPermit(());

impl MayDispatch for DispatchPermit {}

impl DispatchPermit {
    /// Only the dispatcher may call this.
    pub(in crate::daemon::server::dispatch) fn new() -> Self {
        Self(())
    }
}

/// Proof that a call waits for something that will end it, or that it has no client left to answer.
/// The dispatcher makes it when it notes what the call waits for.
#[derive(Debug)]
#[must_use = "the dispatcher wants to see it"]
pub(crate) struct Waiting(());

impl Waiting {
    /// Only the dispatcher may call this.
    pub(in crate::daemon::server::dispatch) fn new() -> Self {
        Self(())
    }
}
