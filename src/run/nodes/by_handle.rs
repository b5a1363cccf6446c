//! Renewing a lease over nodes, and giving it back, by its handle.
//!
//! Both speak to the nodes from this process, which must have one thread.

use std::io;

use super::driver::{Driver, OnLease};
use super::host::{Ending, Host};
use super::lease::handle::LeaseHandle;
use super::request::NodesRequest;

/// Renews a lease. [`Host::start`] is called when enough nodes have renewed it; if the host goes on
/// then, it is kept until the host wants no more. `request` is [`NodesRequest::of_lease`]. Returns `None`
/// if the host wanted no more.
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

/// Gives a lease back at each node that can be reached. `request` is [`NodesRequest::of_lease`]. Returns
/// `None` if the host wanted no more.
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
