//! The `[nodes]` and `[node_groups]` tables of the configuration.
//!
//! They name daemons for clients, which read the same file; the daemon only checks the names. One
//! setting of `[nodes]` is for the daemon: the longest TTL of a lease over nodes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use crate::config::typo_suggestions::with_suggestion;
use canal_core::{LEASE_MS_MAX, LEASE_OVER_NODES_MS_MIN};
use canal_protocol::Node;
use canal_protocol::node_address::NodeAddress;
use canal_text::duration::{read as duration, stated};

/// The one setting of this table that is not the name of a node.
const LONGEST_TTL: &str = "longest_ttl";

/// The default for the longest TTL of a lease over nodes. A daemon that had to create new state
/// grants nothing over nodes for this long.
pub(super) const LONGEST_TTL_DEFAULT: Duration = Duration::from_secs(90);

/// The smallest value that the configuration may set.
const LONGEST_TTL_MIN: Duration = Duration::from_millis(LEASE_OVER_NODES_MS_MIN);

/// The largest value that the configuration may set.
const LONGEST_TTL_MAX: Duration = Duration::from_millis(LEASE_MS_MAX);

/// The nodes and groups of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfiguredNodes {
    /// The file that contains them.
    pub file: Option<PathBuf>,
    /// Each node, by its name.
    pub nodes: BTreeMap<String, Node>,
    /// The nodes of each group, by the group's name without `@`. A node is a name or an address.
    pub groups: BTreeMap<String, Vec<String>>,
}

/// `[nodes]` as the file contains it: `name = "ADDRESS"`, or `name = { address = "ADDRESS", canal =
/// "PATH" }`.
pub(crate) type Nodes = BTreeMap<Spanned<String>, Spanned<toml::Value>>;

/// `[node_groups]`.
pub(crate) type Groups = BTreeMap<Spanned<String>, Vec<Spanned<String>>>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Details {
    address: String,
    canal: Option<String>,
}

fn longest_ttl(value: &Spanned<toml::Value>) -> Result<Duration, String> {
    let Some(text) = value.get_ref().as_str() else {
        return Err(format!("`{LONGEST_TTL}` must be a duration, such as \"10m\""));
    };
    let found = duration(text)?;
    if (LONGEST_TTL_MIN..=LONGEST_TTL_MAX).contains(&found) {
        return Ok(found);
    }
    let (least, most) = (stated(LONGEST_TTL_MIN), stated(LONGEST_TTL_MAX));
    Err(format!("`{LONGEST_TTL}` must be at least {least} and at most {most}"))
}

fn details(value: &toml::Value) -> Result<Details, String> {
    match value {
        toml::Value::String(address) => Ok(Details { address: address.clone(), canal: None }),
        toml::Value::Table(table) => {
            let details = Details::deserialize(table.clone());
            details.map_err(|error| with_suggestion(error.message()))
        }
        _ => Err("a node must be an address, or a table with `address` and `canal`".to_owned()),
    }
}

/// Checks both tables. Returns the nodes and groups, and the longest TTL of a lease over nodes, if
/// the configuration sets it.
///
/// # Errors
/// The offset of the mistake, and its description.
pub(crate) fn configured(
    nodes: &Nodes,
    groups: &Groups,
) -> Result<(ConfiguredNodes, Option<Duration>), (usize, String)> {
    let (mut found, mut longest) = (ConfiguredNodes::default(), None);
    for (name, entry) in nodes {
        let (text, at) = (name.get_ref(), entry.span().start);
        if text == LONGEST_TTL {
            longest = Some(longest_ttl(entry).map_err(|what| (at, what))?);
            continue;
        }
        // A misspelled name of the setting must not be read as a node with a wrong address.
        if strsim::osa_distance(text, LONGEST_TTL) <= 2 {
            return Err((at, format!("unknown field `{text}`; did you mean `{LONGEST_TTL}`?")));
        }
        check_name(name, "node")?;
        let wrong = |what: String| (at, format!("node `{text}`: {what}"));
        let Details { address, canal } = details(entry.get_ref()).map_err(wrong)?;
        let address: NodeAddress = address.parse().map_err(wrong)?;
        if let Some(canal) = &canal {
            if !matches!(address, NodeAddress::Ssh(_)) {
                return Err(wrong("`canal` needs an ssh address".to_owned()));
            }
            if canal.is_empty() || canal.contains(char::is_control) {
                return Err(wrong("`canal` must be the path of a program".to_owned()));
            }
        }
        found.nodes.insert(text.clone(), Node { name: text.clone(), address, canal });
    }
    for (name, members) in groups {
        check_name(name, "group")?;
        if members.is_empty() {
            let what = format!("group `{}` has no nodes", name.get_ref());
            return Err((name.span().start, what));
        }
        for member in members {
            check_member(member, &found.nodes).map_err(|what| {
                (member.span().start, format!("group `{}`: {what}", name.get_ref()))
            })?;
        }
        let members = members.iter().map(|member| member.get_ref().clone()).collect();
        found.groups.insert(name.get_ref().clone(), members);
    }
    Ok((found, longest))
}

/// Checks that a name can be part of a list on the command line, and is not an address.
fn check_name(name: &Spanned<String>, what: &str) -> Result<(), (usize, String)> {
    let text = name.get_ref();
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-');
    let begins_well = text.chars().next().is_some_and(char::is_alphanumeric);
    let wrong = |why: &str| Err((name.span().start, format!("the {what} `{text}` {why}")));
    if !begins_well || !text.chars().all(is_plain) {
        return wrong(
            "needs a name of letters, digits, `.`, `_` and `-` that begins with a letter or digit",
        );
    }
    if text == "local" && what == "node" {
        return wrong("needs another name: `local` is the daemon of this machine");
    }
    Ok(())
}

fn check_member(member: &Spanned<String>, nodes: &BTreeMap<String, Node>) -> Result<(), String> {
    let text = member.get_ref();
    if text.starts_with('@') {
        return Err(format!("`{text}` is a group; a group can contain only nodes"));
    }
    if NodeAddress::is_meant(text) {
        return text.parse::<NodeAddress>().map(drop).map_err(|what| format!("`{text}`: {what}"));
    }
    nodes.get(text).map(drop).ok_or_else(|| format!("`{text}` is not a node in [nodes]"))
}
