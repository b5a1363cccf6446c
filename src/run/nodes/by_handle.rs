//! Renews and releases a lease over nodes by its handle.
//!
//! Both run in this process, which must have one thread.

use std::io;

use super::driver::{Driver, OnLease};
use super::host::{Ending, Host};
use super::lease::handle::LeaseHandle;
use super::request::NodesRequest;

/// Renews a lease. This calls [`Host::start`] when enough nodes have renewed it. If the host then
/// continues, this keeps the lease until the host stops. `request` is [`NodesRequest::of_lease`].
/// Returns `None` if the host stopped.
///
/// # Errors
/// A system call failed.
pub fn renew_lease(
    handle: &LeaseHandle,
    request: &NodesRequest,
    host: &mut dyn Host,
) -> io::Result<Option<Ending>> {
    Driver::of_lease(request, handle, OnLease::Renew).run(host)
}

/// Releases a lease at each node in reach. `request` is [`NodesRequest::of_lease`]. Returns `None`
/// if the host stopped.
///
/// # Errors
/// A system call failed.
pub fn give_back_lease(
    handle: &LeaseHandle,
    request: &NodesRequest,
    host: &mut dyn Host,
) -> io::Result<Option<Ending>> {
    Driver::of_lease(request, handle, OnLease::GiveBack).run(host)
}
