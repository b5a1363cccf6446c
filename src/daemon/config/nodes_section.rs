//! The `[nodes]` table of the configuration.
//!
//! It names nodes for clients, which the daemon does not look at, and says how long a lease over nodes
//! may live here.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use crate::daemon::config::duration::duration;
use crate::daemon::limits::{NODES_TTL_MAX, NODES_TTL_MIN};
use crate::duration_text::stated;

/// The one setting of this table that is no name of a node.
const LONGEST_TTL: &str = "longest_ttl";

/// `[nodes]`, as it is written in the file.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
pub(crate) struct Section(BTreeMap<Spanned<String>, Spanned<toml::Value>>);

impl Section {
    /// The longest TTL of a lease over nodes, if it is stated.
    ///
    /// # Errors
    /// Where the section is wrong, and what is wrong.
    pub(crate) fn longest_ttl(&self) -> Result<Option<Duration>, (usize, String)> {
        let mut found = None;
        for (name, value) in &self.0 {
            if name.get_ref() == LONGEST_TTL {
                found = Some(longest_ttl(value).map_err(|what| (value.span().start, what))?);
            } else if strsim::osa_distance(name.get_ref(), LONGEST_TTL) <= 2 {
                let name = name.get_ref();
                let what = format!("unknown field `{name}`; did you mean `{LONGEST_TTL}`?");
                return Err((value.span().start, what));
            }
        }
        Ok(found)
    }
}

fn longest_ttl(value: &Spanned<toml::Value>) -> Result<Duration, String> {
    let Some(text) = value.get_ref().as_str() else {
        return Err(format!("`{LONGEST_TTL}` is a duration, such as \"10m\""));
    };
    let found = duration(text)?;
    if (NODES_TTL_MIN..=NODES_TTL_MAX).contains(&found) {
        return Ok(found);
    }
    let (least, most) = (stated(NODES_TTL_MIN), stated(NODES_TTL_MAX));
    Err(format!("`{LONGEST_TTL}` is at least {least} and at most {most}"))
}
