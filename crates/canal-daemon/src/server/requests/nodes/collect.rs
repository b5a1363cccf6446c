//! Requests for one part of a request over nodes.
//!
//! Invariant: an unconfirmed part ends with its connection and with this daemon, and is never
//! written to storage that outlives a reboot. If several connections ask for the same part, it
//! depends on the newest: the client sent all messages on an older one before it lost that
//! connection.

use crate::calls::conn_id::ConnId;
use crate::server::Server;
use crate::server::dispatch::step::Step;
use crate::server::requests::acquire::Part;
use crate::wording::refusal::superseded;
use canal_core::{Above, NODES_MAX, OverNodes};
use canal_protocol::{Acquire, Collect, ErrorName, Failure, LeaseAsked, OnLost};

impl Server {
    pub(crate) fn collect(
        &mut self,
        id: ConnId,
        collect: Collect,
        more: bool,
    ) -> Result<Step, Failure> {
        self.check_node()?;
        self.check_list(&collect)?;
        self.check_ttl_over_nodes(collect.ttl_ms)?;
        let known = self.ledger.table.tagged(collect.tag);
        if known.and_then(|it| self.ledger.table.hold_of(it)).is_some_and(|it| !it.provisional) {
            return Err(bad("this part is already confirmed: renew it"));
        }
        if known.is_some_and(|it| self.belongs_to_newer(it, id)) {
            return Err(superseded(ErrorName::Gone));
        }
        let spare = collect.spare;
        let over_nodes =
            OverNodes { run: collect.run, nodes: collect.nodes, require: collect.require, spare };
        let acquire = Acquire {
            tag: collect.tag,
            items: collect.items,
            wait_ms: if spare { Some(0) } else { collect.wait_ms },
            priority: collect.priority,
            max_waiting: collect.max_waiting,
            supersede: None,
            group: None,
            command: collect.command,
            note: collect.note,
            owner_fd: None,
            with_children: false,
            jobserver: false,
            jobserver_fifo: false,
            max_run_ms: None,
            session: None,
            frame: None,
            lease: Some(LeaseAsked { handle: collect.handle, ttl_ms: collect.ttl_ms }),
            under_run: collect.under_run,
            under: collect.under,
            wrapper: None,
            on_lost: OnLost::default(),
        };
        let under_frame = collect.under_frame.map(|above| Above::Frame(above.node, above.frame));
        let part = Part { over_nodes: Box::new(over_nodes), under_frame };
        self.ask_for(id, Box::new(acquire), Some(part), more, Vec::new())
    }

    /// Checks whether a request to this node can have this list of nodes.
    fn check_list(&mut self, collect: &Collect) -> Result<(), Failure> {
        let nodes = &collect.nodes;
        if nodes.len() > NODES_MAX {
            let count = nodes.len();
            return Err(bad(&format!("a request names at most {NODES_MAX} nodes, not {count}")));
        }
        if nodes.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(bad("`nodes` must name each node once, in ascending order"));
        }
        let own = self.node_id()?;
        if !nodes.contains(&own) {
            return Err(bad(&format!("`nodes` does not name this node, {own}")));
        }
        Ok(())
    }
}

fn bad(message: &str) -> Failure {
    Failure::new(ErrorName::BadRequest, message)
}
