//! The nodes that a list of the command line names, by the configuration that the daemon reads.

use crate::cli::connect::Target;
use crate::cli::failed::Failed;
use crate::client::nodes::list::{KnownNode, KnownNodes, Node, resolve};
use crate::daemon;
use crate::protocol::node_address::NodeAddress;
use crate::protocol::place::{Place, Rule};
use crate::run::environment;

/// The nodes that the words of a list name.
///
/// # Errors
/// A name is unknown, one node is there twice, or the list is empty.
pub(in crate::cli) fn listed(words: &[String], target: &Target) -> Result<Vec<Node>, Failed> {
    let resolved = resolve(words, || known(&target.place))?;
    resolved.map_err(|error| {
        let failed = Failed::new(error.to_string());
        match error.hint() {
            Some(hint) => failed.hint(hint),
            None => failed,
        }
    })
}

/// The nodes at these addresses, as the configuration calls them.
///
/// # Errors
/// The configuration cannot be read.
pub(in crate::cli) fn named<'a>(
    addresses: impl Iterator<Item = &'a NodeAddress>,
    target: &Target,
) -> Result<Vec<Node>, Failed> {
    let known = known(&target.place)?;
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

/// The nodes at which a deadlock may go on that a nested request is part of: those of the enclosing runs,
/// and all that have a name. What cannot be understood is left out.
///
/// # Errors
/// The configuration cannot be used.
pub(in crate::cli) fn near(target: &Target) -> Result<Vec<Node>, Failed> {
    let known = known(&target.place)?;
    let around = std::env::var(environment::RUN_NODES).unwrap_or_default();
    let words = around.split(',').chain(known.nodes.keys().map(String::as_str));
    let mut near: Vec<Node> = Vec::new();
    for word in words.filter(|word| !word.is_empty()) {
        let found = resolve(&[word.to_owned()], || Ok::<_, Failed>(known.clone()))?;
        let new = found.into_iter().flatten();
        near.extend(new.filter(|node| node.address != NodeAddress::Local));
    }
    Ok(near)
}

/// The names of the configuration that the daemon of this place reads; for that of the machine also
/// those of the user's own.
fn known(place: &Place) -> Result<KnownNodes, Failed> {
    let mut paths = vec![place.stores().config.clone()];
    if place.rule == Rule::Shared {
        paths.extend(
            Place::of_user(place.uid.get()).stores().config.last().map(|own| vec![own.clone()]),
        );
    }
    let mut known = KnownNodes::default();
    let (mut read, mut missing) = (Vec::new(), Vec::new());
    for paths in paths {
        let configured = daemon::configured_nodes(&paths)?;
        match configured.file {
            Some(file) => read.push(file.display().to_string()),
            None => missing.extend(paths.iter().map(|path| path.display().to_string())),
        }
        for (name, node) in configured.nodes {
            known.nodes.insert(name, KnownNode { address: node.address, canal: node.canal });
        }
        known.groups.extend(configured.groups);
    }
    known.source = match read.is_empty() {
        true => format!("{} (not there yet)", missing.join(" or ")),
        false => read.join(" and "),
    };
    Ok(known)
}
