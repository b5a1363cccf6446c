//! Resolves a list of nodes from the command line: `web1,ssh:deploy@web2`, `@web`, `local`.
//!
//! Invariant: each node appears once, even if two names have the same address.

use std::collections::BTreeMap;

use crate::client::nodes::Node;
use crate::protocol::node_address::NodeAddress;

/// How similar a known name must be to an unknown one to be suggested.
const SIMILAR: f64 = 0.7;

/// The names that a list may contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KnownNodes {
    /// The file that defines them, or would define them, for messages.
    pub source: String,
    /// The nodes by name.
    pub nodes: BTreeMap<String, KnownNode>,
    /// The members of each group, by its name without `@`.
    pub groups: BTreeMap<String, Vec<String>>,
}

/// A node that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownNode {
    /// The address of the node.
    pub address: NodeAddress,
    /// The program on the node, if it is not the `canal` in its PATH.
    pub canal: Option<String>,
}

/// Why a list is unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ListError {
    /// The list names no node.
    #[error("the list of nodes is empty")]
    Empty,
    /// A name between two commas is missing.
    #[error("`{0}` has an empty name before or after a comma")]
    Gap(String),
    /// The configuration does not define this node.
    #[error("unknown node `{name}`")]
    UnknownNode {
        /// The name.
        name: String,
        /// Advice for the user.
        hint: String,
    },
    /// The configuration does not define this group.
    #[error("unknown group `@{name}`")]
    UnknownGroup {
        /// The name of the group, without `@`.
        name: String,
        /// Advice for the user.
        hint: String,
    },
    /// The text is not an address.
    #[error("`{text}`: {why}")]
    Address {
        /// The text.
        text: String,
        /// The reason.
        why: String,
    },
    /// The list contains a node twice under one name.
    #[error("{name} is named twice{by_group}")]
    Twice {
        /// The name of the node.
        name: String,
        /// ` (once by @web)`, or nothing.
        by_group: String,
    },
    /// The list contains a node under two names.
    #[error("{one} and {other} are the same node: {address}")]
    SameAddress {
        /// One name.
        one: String,
        /// The other name.
        other: String,
        /// The address of both.
        address: NodeAddress,
    },
}

impl ListError {
    /// Advice for the user.
    #[must_use]
    pub(super) fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Empty | Self::Gap(_) => {
                "write a list like web1,web2 or ssh:deploy@web1,local".to_owned()
            }
            Self::UnknownNode { hint, .. } | Self::UnknownGroup { hint, .. } => hint.clone(),
            Self::Address { .. } => return None,
            Self::Twice { .. } | Self::SameAddress { .. } => "name each node once".to_owned(),
        })
    }
}

/// The nodes that the arguments of all `--on` name, in order. Calls `known` only if a word is not
/// an address.
///
/// # Errors
/// The inner error is a [`ListError`]; the outer one tells why the names could not be read.
pub(super) fn resolve<E>(
    words: &[String],
    known: impl FnOnce() -> Result<KnownNodes, E>,
) -> Result<Result<Vec<Node>, ListError>, E> {
    let parts = words.iter().flat_map(|word| word.split(',').map(move |part| (word, part.trim())));
    let parts: Vec<(&String, &str)> = parts.collect();
    let needs_names = |text: &str| !text.is_empty() && !NodeAddress::is_meant(text);
    let known = match parts.iter().any(|(_, part)| needs_names(part)) {
        true => known()?,
        false => KnownNodes::default(),
    };
    Ok(resolve_by(&parts, &known))
}

fn resolve_by(parts: &[(&String, &str)], known: &KnownNodes) -> Result<Vec<Node>, ListError> {
    let mut nodes = Vec::new();
    // The group that named each node, if any.
    let mut groups: Vec<Option<&str>> = Vec::new();
    for (word, part) in parts {
        if part.is_empty() {
            return Err(match word.trim() {
                "" => ListError::Empty,
                word => ListError::Gap(word.to_owned()),
            });
        }
        match part.strip_prefix('@') {
            None => {
                add(&mut nodes, &mut groups, known.node(part)?, None)?;
            }
            Some(group) => {
                for member in known.group(group)? {
                    add(&mut nodes, &mut groups, known.node(member)?, Some(group))?;
                }
            }
        }
    }
    if nodes.is_empty() { Err(ListError::Empty) } else { Ok(nodes) }
}

fn add<'a>(
    nodes: &mut Vec<Node>,
    groups: &mut Vec<Option<&'a str>>,
    node: Node,
    group: Option<&'a str>,
) -> Result<(), ListError> {
    if let Some(at) = nodes.iter().position(|other: &Node| other.address == node.address) {
        let other = &nodes[at];
        if other.name != node.name {
            let (one, other) = (other.name.clone(), node.name);
            return Err(ListError::SameAddress { one, other, address: node.address });
        }
        let by_group = group.or(groups[at]).map(|group| format!(" (once by @{group})"));
        return Err(ListError::Twice { name: node.name, by_group: by_group.unwrap_or_default() });
    }
    nodes.push(node);
    groups.push(group);
    Ok(())
}

impl KnownNodes {
    fn node(&self, text: &str) -> Result<Node, ListError> {
        if let Some(KnownNode { address, canal }) = self.nodes.get(text) {
            let (address, canal) = (address.clone(), canal.clone());
            return Ok(Node { name: text.to_owned(), address, canal });
        }
        if NodeAddress::is_meant(text) {
            let address: NodeAddress =
                text.parse().map_err(|why| ListError::Address { text: text.to_owned(), why })?;
            return Ok(Node { name: address.to_string(), address, canal: None });
        }
        let hint = match nearest(text, self.nodes.keys()) {
            Some(near) => format!("did you mean {near}? It is in [nodes] of {}", self.source),
            None if self.groups.contains_key(text) => {
                format!("begin a group with @: @{text} is in [node_groups] of {}", self.source)
            }
            None => format!(
                "add {text} = \"ssh:{text}\" to [nodes] of {}, or give the address: ssh:{text}",
                self.source
            ),
        };
        Err(ListError::UnknownNode { name: text.to_owned(), hint })
    }

    fn group(&self, name: &str) -> Result<&[String], ListError> {
        if let Some(members) = self.groups.get(name) {
            return Ok(members);
        }
        let hint = match nearest(name, self.groups.keys()) {
            Some(near) => {
                format!("did you mean @{near}? It is in [node_groups] of {}", self.source)
            }
            None => format!("define groups in [node_groups] of {}", self.source),
        };
        Err(ListError::UnknownGroup { name: name.to_owned(), hint })
    }
}

fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a String>) -> Option<&'a str> {
    let similar = known.filter(|known| strsim::jaro_winkler(name, known) > SIMILAR);
    similar.min_by_key(|known| strsim::osa_distance(name, known)).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> KnownNodes {
        let node = |address: &str, canal: Option<&str>| KnownNode {
            address: address.parse().unwrap(),
            canal: canal.map(str::to_owned),
        };
        KnownNodes {
            source: "/etc/canal/canal.toml".to_owned(),
            nodes: [
                ("web1".to_owned(), node("ssh:deploy@web1", Some("/opt/canal"))),
                ("web2".to_owned(), node("ssh:web2", None)),
                ("also-web2".to_owned(), node("ssh:web2", None)),
            ]
            .into(),
            groups: [("web".to_owned(), vec!["web1".to_owned(), "web2".to_owned()])].into(),
        }
    }

    fn resolved(words: &[&str]) -> Result<Vec<Node>, ListError> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        resolve(&words, || Ok::<_, ()>(known())).unwrap()
    }

    fn names(words: &[&str]) -> Vec<String> {
        resolved(words).unwrap().into_iter().map(|node| node.name).collect()
    }

    fn error(words: &[&str]) -> (String, String) {
        let error = resolved(words).unwrap_err();
        (error.to_string(), error.hint().unwrap_or_default())
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
        assert_eq!(resolve(&words, || Err("is not read")).unwrap().unwrap().len(), 2);
        assert_eq!(resolve(&["x".to_owned()], || Err("cannot be read")), Err("cannot be read"));
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
