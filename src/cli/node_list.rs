//! The nodes that a command line names: `web1,ssh:deploy@web2`, `@web`, `local`; and those around a
//! request. Names come from the configuration of the daemon.
//!
//! Invariant: each node appears once, even if two names have the same address.

use std::collections::BTreeMap;

use crate::cli::{Failed, Result, Target};
use crate::client::command_environment;
use crate::client::nodes::known_nodes::KnownNodes;
use crate::client::nodes::lease::{LeaseHandle, LeasePart};
use crate::daemon;
use crate::protocol::Node;
use crate::protocol::node_address::NodeAddress;
use crate::protocol::paths::{Place, Rule};
use crate::run::nodes::Around;

/// The nodes that the words of a list name.
///
/// # Errors
/// A name is unknown, a node appears twice, or the list is empty.
pub(crate) fn listed(words: &[String], target: &Target) -> Result<Vec<Node>> {
    resolve(words, || configured(&target.place))
}

/// The nodes of a lease, with their names from the configuration.
///
/// # Errors
/// The configuration cannot be read.
pub(crate) fn of_lease(handle: &LeaseHandle, target: &Target) -> Result<Vec<Node>> {
    let known = configured(&target.place)?;
    let node = |LeasePart { address, .. }: &LeasePart| {
        let named = known.nodes.values().find(|node| node.address == *address);
        named.cloned().unwrap_or_else(|| Node::at(address.clone()))
    };
    Ok(handle.parts.iter().map(node).collect())
}

/// The nodes across which a deadlock of a nested request may extend: those of the enclosing runs,
/// and all that have a name. Words that cannot be understood are ignored.
///
/// # Errors
/// The configuration is unusable.
pub(crate) fn near(target: &Target) -> Result<Vec<Node>> {
    let known = configured(&target.place)?;
    let around = std::env::var(command_environment::RUN_NODES).unwrap_or_default();
    let words = around.split(',').chain(known.nodes.keys().map(String::as_str));
    let near = words.filter_map(|word| known.node(word.trim()).ok());
    Ok(near.filter(|node| node.address != NodeAddress::Local).collect())
}

/// How a request of this machine reaches its nodes, and those `near` it.
pub(crate) fn around(target: &Target, near: Vec<Node>) -> Around {
    let (here, options) = (target.place.clone(), target.options.clone());
    Around { near, known_nodes: KnownNodes::of(&here), here, options }
}

/// The names in the configuration that the daemon of this place reads. For the daemon of the
/// machine, the names in the user's own configuration count too.
fn configured(place: &Place) -> Result<NamedNodes> {
    let mut paths = vec![place.stores().config.clone()];
    if place.rule == Rule::Shared {
        let own = Place::of_user(place.uid.get());
        paths.extend(own.stores().config.last().map(|own| vec![own.clone()]));
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

/// How similar a known name must be to an unknown one to be suggested.
const SIMILAR: f64 = 0.7;

/// The names that a list may contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NamedNodes {
    /// The file that defines them, or would define them, for messages.
    pub source: String,
    /// The nodes by name.
    pub nodes: BTreeMap<String, Node>,
    /// The members of each group, by its name without `@`.
    pub groups: BTreeMap<String, Vec<String>>,
}

/// The nodes that the arguments of all `--on` name, in order. Calls `known` only if a word is not
/// an address.
///
/// # Errors
/// A name is unknown, a node appears twice, the list is empty, or the names could not be read.
fn resolve(words: &[String], known: impl FnOnce() -> Result<NamedNodes>) -> Result<Vec<Node>> {
    let parts = words.iter().flat_map(|word| word.split(',').map(move |part| (word, part.trim())));
    let parts: Vec<(&String, &str)> = parts.collect();
    let needs_names = |text: &str| !text.is_empty() && !NodeAddress::is_meant(text);
    let known = match parts.iter().any(|(_, part)| needs_names(part)) {
        true => known()?,
        false => NamedNodes::default(),
    };
    // Each node, and the group that named it, if any.
    let mut named: Vec<(Node, Option<&str>)> = Vec::new();
    for (word, part) in parts {
        if part.is_empty() {
            return Err(no_list(match word.trim() {
                "" => EMPTY.to_owned(),
                word => format!("`{word}` has an empty name before or after a comma"),
            }));
        }
        let group = part.strip_prefix('@');
        let members = match group {
            None => vec![part],
            Some(group) => known.group(group)?.iter().map(String::as_str).collect(),
        };
        for member in members {
            let node = known.node(member)?;
            if let Some((other, by)) = named.iter().find(|(it, _)| it.address == node.address) {
                return Err(twice(other, &node, group.or(*by)));
            }
            named.push((node, group));
        }
    }
    let nodes: Vec<Node> = named.into_iter().map(|(node, _)| node).collect();
    if nodes.is_empty() { Err(no_list(EMPTY.to_owned())) } else { Ok(nodes) }
}

const EMPTY: &str = "the list of nodes is empty";

fn no_list(message: String) -> Failed {
    Failed::new(message).hint("write a list like web1,web2 or ssh:deploy@web1,local")
}

/// The failure for a list that contains a node twice.
fn twice(one: &Node, other: &Node, group: Option<&str>) -> Failed {
    let (one, other, address) = (&one.name, &other.name, &one.address);
    let message = match group {
        _ if one != other => format!("{one} and {other} are the same node: {address}"),
        Some(group) => format!("{one} is named twice (once by @{group})"),
        None => format!("{one} is named twice"),
    };
    Failed::new(message).hint("name each node once")
}

impl NamedNodes {
    fn node(&self, text: &str) -> Result<Node> {
        if let Some(node) = self.nodes.get(text) {
            return Ok(node.clone());
        }
        if NodeAddress::is_meant(text) {
            let address = text.parse().map_err(|why| Failed::new(format!("`{text}`: {why}")))?;
            return Ok(Node::at(address));
        }
        let file = &self.source;
        let hint = match nearest(text, self.nodes.keys()) {
            Some(near) => format!("did you mean {near}? It is in [nodes] of {file}"),
            None if self.groups.contains_key(text) => {
                format!("begin a group with @: @{text} is in [node_groups] of {file}")
            }
            None => format!(
                "add {text} = \"ssh:{text}\" to [nodes] of {file}, or give the address: ssh:{text}"
            ),
        };
        Err(Failed::new(format!("unknown node `{text}`")).hint(hint))
    }

    fn group(&self, name: &str) -> Result<&[String]> {
        if let Some(members) = self.groups.get(name) {
            return Ok(members);
        }
        let file = &self.source;
        let hint = match nearest(name, self.groups.keys()) {
            Some(near) => format!("did you mean @{near}? It is in [node_groups] of {file}"),
            None => format!("define groups in [node_groups] of {file}"),
        };
        Err(Failed::new(format!("unknown group `@{name}`")).hint(hint))
    }
}

fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a String>) -> Option<&'a str> {
    let similar = known.filter(|known| strsim::jaro_winkler(name, known) > SIMILAR);
    similar.min_by_key(|known| strsim::osa_distance(name, known)).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> NamedNodes {
        let node = |name: &str, address: &str, canal: Option<&str>| {
            let address = address.parse().unwrap();
            let node = Node { name: name.to_owned(), address, canal: canal.map(str::to_owned) };
            (name.to_owned(), node)
        };
        NamedNodes {
            source: "/etc/canal/canal.toml".to_owned(),
            nodes: [
                node("web1", "ssh:deploy@web1", Some("/opt/canal")),
                node("web2", "ssh:web2", None),
                node("also-web2", "ssh:web2", None),
            ]
            .into(),
            groups: [("web".to_owned(), vec!["web1".to_owned(), "web2".to_owned()])].into(),
        }
    }

    fn resolved(words: &[&str]) -> Result<Vec<Node>> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        resolve(&words, || Ok(known()))
    }

    fn names(words: &[&str]) -> Vec<String> {
        resolved(words).unwrap().into_iter().map(|node| node.name).collect()
    }

    fn error(words: &[&str]) -> (String, String) {
        let error = resolved(words).unwrap_err();
        (error.message, error.hint.unwrap_or_default())
    }

    #[test]
    fn a_list_has_names_addresses_and_groups() {
        assert_eq!(names(&["web1,web2"]), ["web1", "web2"]);
        assert_eq!(names(&["web2", "web1"]), ["web2", "web1"], "several --on");
        assert_eq!(names(&["@web,local"]), ["web1", "web2", "local"]);
        assert_eq!(names(&["unix:/d/s, ssh:x"]), ["unix:/d/s", "ssh:x"]);
        let web1 = &resolved(&["web1"]).unwrap()[0];
        assert_eq!(
            (web1.address.to_string().as_str(), web1.canal.as_deref()),
            ("ssh:deploy@web1", Some("/opt/canal"))
        );
    }

    #[test]
    fn addresses_alone_need_no_configuration() {
        let words = ["ssh:x,local".to_owned()];
        let unread = || Failed::new("cannot be read");
        assert_eq!(resolve(&words, || Err(unread())).unwrap().len(), 2);
        assert_eq!(resolve(&["x".to_owned()], || Err(unread())), Err(unread()));
    }

    #[test]
    fn each_error_says_what_to_do() {
        for (words, message, hint) in [
            (&[""][..], "the list of nodes is empty", "write a list like"),
            (&["web1,"], "`web1,` has an empty name before or after a comma", "write a list like"),
            (&[",web1"], "`,web1` has an empty name before or after a comma", "write a list like"),
            (
                &["wbe1"],
                "unknown node `wbe1`",
                "did you mean web1? It is in [nodes] of /etc/canal/canal.toml",
            ),
            (&["db"], "unknown node `db`", "to [nodes] of /etc/canal/canal.toml, or give"),
            (
                &["web"],
                "unknown node `web`",
                "did you mean web1? It is in [nodes] of /etc/canal/canal.toml",
            ),
            (
                &["@webb"],
                "unknown group `@webb`",
                "did you mean @web? It is in [node_groups] of /etc/canal/canal.toml",
            ),
            (&["@db"], "unknown group `@db`", "[node_groups] of"),
            (&["web1,web1"], "web1 is named twice", "name each node once"),
            (&["@web", "web1"], "web1 is named twice (once by @web)", "name each node once"),
            (
                &["web2,also-web2"],
                "web2 and also-web2 are the same node: ssh:web2",
                "name each node once",
            ),
            (
                &["web2,ssh:web2"],
                "web2 and ssh:web2 are the same node: ssh:web2",
                "name each node once",
            ),
            (&["ssh:-x"], "`ssh:-x`: a host cannot begin with `-`", ""),
            (&["local,local"], "local is named twice", "name each node once"),
        ] {
            let (found, found_hint) = error(words);
            assert!(found.starts_with(message), "{words:?}: {found}");
            assert!(found_hint.contains(hint), "{words:?}: {found_hint}");
        }
    }
}
