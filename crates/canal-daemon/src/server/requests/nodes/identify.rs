//! Identifies this daemon as a node, and checks whether it can be one.

use std::time::Duration;

use crate::server::Server;
use crate::server::call_step::{Result, Step};
use crate::store::node_identity;
use crate::wording::cannot;
use canal_core::NodeId;
use canal_protocol::{ErrorName, Failure, KnownNode, NodeIdentity, NodesRefusal};
use canal_text::duration::{milliseconds, stated};

impl Server {
    pub(crate) fn identify(&mut self) -> Result {
        let place = self.options.place.dir.display().to_string();
        let uid = self.about.uid;
        let user = self.node.user.name(uid).map(str::to_owned);
        let (node, machine) = (self.node_id()?, node_identity::host_name());
        let identity = NodeIdentity {
            known: KnownNode { node, machine, place, uid, user },
            version: env!("CARGO_PKG_VERSION").to_owned(),
            lasting: self.node.is_lasting && !self.decide.is_shared(),
            grants_from_ms: self.node.left().map(milliseconds),
        };
        Ok(Step::reply(&identity))
    }

    /// The id of this node. A machine that has no name gets one, which is stored with the rest of
    /// the state.
    pub(crate) fn node_id(&mut self) -> Result<NodeId> {
        let machine = match node_identity::machine_name() {
            Some(machine) => machine,
            None => {
                let named = self.decide.ledger_mut().machine_name();
                named.map_err(cannot("store the name of this machine"))?
            }
        };
        Ok(node_identity::id(&machine, &self.options.place.dir, self.about.uid))
    }

    /// Whether this daemon may grant over nodes now.
    pub(super) fn check_node(&self) -> Result<()> {
        let no_node = |why: &str, hint: &str| {
            let message = format!("this daemon is not a node: {why}");
            Err(Failure::new(ErrorName::NotLasting, message).hint(hint))
        };
        if self.decide.is_shared() {
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
            "this daemon had to recreate its state, and will grant no node leases for another {}: \
             an earlier lease may still be valid",
            stated(Duration::from_secs(left.as_secs() + 1))
        );
        let mut failure = Failure::new(ErrorName::NotYet, message);
        failure.nodes = Some(Box::new(NodesRefusal::Later { left_ms: milliseconds(left) }));
        Err(failure)
    }

    /// Notes that every lease that this daemon may have granted before it had to create its state
    /// again has ended. From now on, the daemon knows all its leases.
    pub(crate) fn settle_node(&mut self) {
        match self.decide.ledger_mut().settle_node() {
            Ok(()) => tracing::info!("this daemon now grants node leases"),
            Err(error) => {
                tracing::warn!(%error, "cannot record that this daemon grants node leases");
            }
        }
    }
}
