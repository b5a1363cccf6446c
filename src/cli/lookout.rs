//! Looks for deadlocks across nodes while a plain request waits within a run at nodes.

use super::connect::Target;
use super::failed::Failed;
use super::node_list::near;
use crate::client::nodes::pins::Pins;
use crate::protocol::{Acquire, RunId, Tag};
use crate::run::nodes::{Around, Lookout, WaitWithin};

/// The lookout for a request of this process.
pub(super) fn within(
    target: &Target,
    request: &Acquire,
) -> WaitWithin<impl FnMut(RunId, Tag) -> Option<Lookout>> {
    WaitWithin::new(request, |run, tag| Lookout::start(&around(target).ok()?, run, tag).ok())
}

/// The surroundings of a request on this machine: its nodes, identities and daemon.
///
/// # Errors
/// The configuration is unusable.
pub(super) fn around(target: &Target) -> Result<Around, Failed> {
    let place = &target.place;
    let (pins, here, options) = (Pins::of(place), place.clone(), target.options());
    Ok(Around { near: near(target)?, pins, here, options })
}
