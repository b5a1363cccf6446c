//! The nodes that a command line names, and those around a request: resolved with the configuration
//! of the daemon.

use crate::cli::node_names::{NamedNodes, resolve};
use crate::cli::{Result, Target};
use crate::client::deadlock_watcher::{DeadlockWatcher, WaitWithin};
use crate::client::environment;
use crate::client::nodes::Node;
use crate::client::nodes::known_nodes::KnownNodes;
use crate::daemon;
use crate::protocol::node_address::NodeAddress;
use crate::protocol::place::{Place, Rule};
use crate::protocol::{Acquire, RunId, Tag};
use crate::run::nodes::{Around, start_deadlock_watcher};

/// The nodes that the words of a list name.
///
/// # Errors
/// A name is unknown, a node appears twice, or the list is empty.
pub(crate) fn listed(words: &[String], target: &Target) -> Result<Vec<Node>> {
    resolve(words, || configured(&target.place))
}

/// The nodes at these addresses, with their names from the configuration.
///
/// # Errors
/// The configuration cannot be read.
pub(crate) fn named<'a>(
    addresses: impl Iterator<Item = &'a NodeAddress>,
    target: &Target,
) -> Result<Vec<Node>> {
    let known = configured(&target.place)?;
    let node = |address: &NodeAddress| {
        let named = known.nodes.iter().find(|(_, node)| node.address == *address);
        Node {
            name: named.map_or_else(|| address.to_string(), |(name, _)| name.clone()),
            address: address.clone(),
            canal: named.and_then(|(_, node)| node.canal.clone()),
        }
    };
    Ok(addresses.map(node).collect())
}

/// The nodes across which a deadlock of a nested request may extend: those of the enclosing runs,
/// and all that have a name. Words that cannot be understood are ignored.
///
/// # Errors
/// The configuration is unusable.
pub(crate) fn near(target: &Target) -> Result<Vec<Node>> {
    let known = configured(&target.place)?;
    let around = std::env::var(environment::RUN_NODES).unwrap_or_default();
    let words = around.split(',').chain(known.nodes.keys().map(String::as_str));
    let mut near: Vec<Node> = Vec::new();
    for word in words.filter(|word| !word.is_empty()) {
        let found = resolve(&[word.to_owned()], || Ok(known.clone())).unwrap_or_default();
        near.extend(found.into_iter().filter(|node| node.address != NodeAddress::Local));
    }
    Ok(near)
}

/// The deadlock watcher for a request of this process.
pub(crate) fn within(
    target: &Target,
    request: &Acquire,
) -> WaitWithin<impl FnMut(RunId, Tag) -> Option<DeadlockWatcher>> {
    WaitWithin::new(request, |run, tag| {
        start_deadlock_watcher(&around(target, near(target).ok()?), run, tag).ok()
    })
}

/// How a request of this machine reaches its nodes, and those `near` it.
pub(crate) fn around(target: &Target, near: Vec<Node>) -> Around {
    let place = &target.place;
    Around {
        near,
        known_nodes: KnownNodes::of(place),
        here: place.clone(),
        options: target.options(),
    }
}

/// The names in the configuration that the daemon of this place reads. For the daemon of the
/// machine, the names in the user's own configuration count too.
fn configured(place: &Place) -> Result<NamedNodes> {
    let mut paths = vec![place.stores().config.clone()];
    if place.rule == Rule::Shared {
        paths.extend(
            Place::of_user(place.uid.get()).stores().config.last().map(|own| vec![own.clone()]),
        );
    }
    let mut known = NamedNodes::default();
    let (mut read, mut missing) = (Vec::new(), Vec::new());
    for paths in paths {
        let configured = daemon::configured_nodes(&paths)?;
        match configured.file {
            Some(file) => read.push(file.display().to_string()),
            None => missing.extend(paths.iter().map(|path| path.display().to_string())),
        }
        known.nodes.extend(configured.nodes);
        known.groups.extend(configured.groups);
    }
    known.source = match read.is_empty() {
        true => format!("{} (not there yet)", missing.join(" or ")),
        false => read.join(" and "),
    };
    Ok(known)
}
