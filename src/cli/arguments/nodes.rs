//! Options that name the nodes of a lock, and how many of them must grant it.

use std::time::Duration;

use clap::Args;
use clap::builder::TypedValueParser;

use crate::cli::{Failed, Result};
use crate::core::LEASE_OVER_NODES_MS_MIN;
use crate::nodes::Require;
use crate::protocol::{Mode, WireItem};

use super::parse_value::{millis, one_of, stated, stated_ms};

/// How long a node keeps its part after the last renewal, by default.
pub(crate) const TTL_DEFAULT: Duration = Duration::from_secs(60);

/// The options that choose the nodes.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "On several machines")]
pub(crate) struct NodesArgs {
    // Not a doc comment, in which the brackets would be links.
    #[arg(
        long,
        value_name = "NODES",
        help = "Lock on several nodes: a name, @GROUP, local, unix:PATH, ssh:[USER@]HOST[:PORT]",
        long_help = "Lock on several nodes: a name, @GROUP, local, unix:PATH, ssh:[USER@]HOST[:PORT]\n\n\
                     Nodes are independent daemons. Names and groups come from [nodes] and \
                     [node_groups] in canal.toml. Separate multiple nodes with commas, or repeat \
                     the option."
    )]
    pub(crate) on: Vec<String>,
    /// How many nodes must grant the lock [default: all]
    ///
    /// all-alive and majority-alive count only the nodes that answer within 5 s. While the network
    /// is partitioned, they do not guarantee exclusion: each side may run a command.
    #[arg(long, hide_short_help = true, value_name = "HOW MANY", value_parser = require(), requires = "on")]
    pub(crate) require: Option<Require>,
}

/// How many nodes must name a leader. Fewer than a majority could name two.
pub(super) fn leader_require() -> impl TypedValueParser<Value = Require> {
    one_of([
        ("all", "Every node", Require::All),
        ("majority", "More than half of the nodes", Require::Majority),
    ])
}

/// How many nodes must grant a lock.
fn require() -> impl TypedValueParser<Value = Require> {
    let majority = "More than half of the nodes: survives the loss of the others";
    let all_alive =
        "Every node that answers within 5 s; not exclusive if the network is partitioned";
    let majority_alive = "More than half of the nodes that answer within 5 s; not exclusive if the \
                          network is partitioned";
    one_of([
        ("all", "Every node", Require::All),
        ("any", "One node, the first that is free", Require::Any),
        ("majority", majority, Require::Majority),
        ("all-alive", all_alive, Require::AllAlive),
        ("majority-alive", majority_alive, Require::MajorityAlive),
    ])
}

impl NodesArgs {
    /// Whether the request is for a lock at nodes.
    pub(crate) fn is_given(&self) -> bool {
        !self.on.is_empty()
    }

    pub(crate) fn require(&self) -> Require {
        self.require.unwrap_or_default()
    }

    /// Checks that nodes can grant these items.
    ///
    /// # Errors
    /// The request that nodes cannot grant, and what to do instead.
    pub(crate) fn check(&self, items: &[WireItem]) -> Result {
        let is_part = matches!(self.require(), Require::Majority | Require::MajorityAlive);
        let written = items.iter().find(|item| item.mode == Some(Mode::Write)).filter(|_| is_part);
        let Some(WireItem { key, .. }) = written else { return Ok(()) };
        let why = format!("--write {key} would not block commands on the other nodes");
        Err(Failed::new(why).hint("block all nodes with --require all"))
    }
}

/// The TTL of a lock at nodes, in milliseconds.
///
/// # Errors
/// The TTL is too short to reach a node again in time.
pub(crate) fn ttl_ms(ttl: Option<Duration>) -> Result<u64> {
    let ttl = ttl.unwrap_or(TTL_DEFAULT);
    let ttl_ms = millis(ttl);
    if ttl_ms >= LEASE_OVER_NODES_MS_MIN {
        return Ok(ttl_ms);
    }
    let (ttl, least) = (stated(ttl), stated_ms(LEASE_OVER_NODES_MS_MIN));
    let short =
        format!("a TTL of {ttl} is too short for a node lease: it must be at least {least}");
    let hint = "give a longer one; a shorter one leaves no time to reconnect to a node";
    Err(Failed::new(short).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_leaves_time_to_reach_a_node_again() {
        assert_eq!(ttl_ms(None).unwrap(), 60_000);
        assert_eq!(ttl_ms(Some(Duration::from_secs(10))).unwrap(), 10_000);
        let failed = ttl_ms(Some(Duration::from_secs(9))).unwrap_err();
        assert_eq!(
            failed.message,
            "a TTL of 9s is too short for a node lease: it must be at least 10s"
        );
    }

    #[test]
    fn a_majority_stops_nobody_at_the_other_nodes() {
        let args = |require| NodesArgs { on: vec!["a,b,c".to_owned()], require };
        let item = WireItem { key: "db".into(), mode: Some(Mode::Write), ..WireItem::default() };
        let failed = args(Some(Require::Majority)).check(std::slice::from_ref(&item)).unwrap_err();
        assert_eq!(failed.message, "--write db would not block commands on the other nodes");
        assert!(args(None).check(&[item]).is_ok());
    }
}
