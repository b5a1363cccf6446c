//! Identifies this daemon as a node, and checks whether it can be one.

use std::time::Duration;

use crate::server::Server;
use crate::server::dispatch::step::Step;
use crate::store::node;
use canal_core::NodeId;
use canal_protocol::{ErrorName, Failure, NodeIdentity, NodesRefusal};
use canal_text::duration::stated;

impl Server {
    pub(crate) fn identify(&mut self) -> Result<Step, Failure> {
        let place = self.runtime_dir.place().dir.display().to_string();
        let uid = self.about.uid;
        let mut identity = NodeIdentity::new(self.node_id()?, node::host_name(), place, uid);
        identity.user = self.own_user.name(uid).map(str::to_owned);
        identity.lasting = self.node.is_lasting && self.cluster.is_none();
        identity.grants_from_ms = self.node.left().map(milliseconds);
        Ok(Step::reply(&identity))
    }

    /// The id of this node. A machine that has no name gets one, which is stored with the rest of
    /// the state.
    pub(crate) fn node_id(&mut self) -> Result<NodeId, Failure> {
        let machine = match node::machine_name() {
            Some(machine) => machine,
            None => self.ledger.machine_name().map_err(|error| {
                let message = format!("cannot store the name of this machine: {error}");
                Failure::new(ErrorName::DiskFull, message)
            })?,
        };
        Ok(node::id(&machine, &self.runtime_dir.place().dir, self.about.uid))
    }

    /// Whether this daemon may grant over nodes now.
    pub(crate) fn check_node(&self) -> Result<(), Failure> {
        let no_node = |why: &str, hint: &str| {
            let message = format!("this daemon is not a node: {why}");
            Err(Failure::new(ErrorName::NotLasting, message).hint(hint))
        };
        if self.cluster.is_some() {
            return no_node(
                "it has an engine",
                "leave out --on: hosts of one engine already share one table",
            );
        }
        if !self.node.is_lasting {
            return no_node(
                "its state is in memory, and would not survive a reboot",
                "put its state_directory (see `canal config`) on a disk",
            );
        }
        let Some(left) = self.node.left() else { return Ok(()) };
        let message = format!(
            "this daemon had to recreate its state, and will grant nothing over nodes for another \
             {}: an earlier lease may still be valid",
            stated(Duration::from_secs(left.as_secs() + 1))
        );
        let mut failure = Failure::new(ErrorName::NotYet, message);
        failure.nodes = Some(Box::new(NodesRefusal::Later { left_ms: milliseconds(left) }));
        Err(failure)
    }

    /// Checks whether this node accepts a lease over nodes with this TTL. After a loss of its
    /// state, the node waits only for the longest TTL that it accepts.
    pub(crate) fn check_ttl_over_nodes(&self, ttl_ms: u64) -> Result<(), Failure> {
        let longest = self.limits.nodes_longest_ttl;
        if u128::from(ttl_ms) <= longest.as_millis() {
            return Ok(());
        }
        let message = format!(
            "the TTL of a lease over nodes can be at most {} here, not {ttl_ms} ms",
            stated(longest)
        );
        let hint = "see `longest_ttl` under `[nodes]` in the configuration of that node";
        Err(Failure::new(ErrorName::BadRequest, message).hint(hint))
    }

    /// Notes that every lease has ended that this daemon may have granted before it had to create
    /// its state again. From now on, the daemon knows all its leases.
    pub(crate) fn settle_node(&mut self) {
        match self.ledger.settle_node() {
            Ok(()) => tracing::info!("this daemon now grants over nodes"),
            Err(error) => {
                tracing::warn!(%error, "cannot record that this daemon grants over nodes");
            }
        }
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
