//! Asking for one part of a request over nodes.
//!
//! Invariant: a part that is not confirmed ends with its connection and with this daemon, and is never
//! written where it would outlive a reboot. Of several connections that ask for one part it depends on the
//! newest: what an older one still brings was sent before its client lost it.

use std::sync::Arc;

use crate::core::{Above, NODES_MAX, OverNodes, Refusal, Request, RequestId, differs_in_nodes};
use crate::daemon::calls::conn_id::ConnId;
use crate::daemon::server::Server;
use crate::daemon::server::dispatch::step::Step;
use crate::daemon::server::requests::acquire::Part;
use crate::daemon::wording::refusal::superseded;
use crate::duration::stated;
use crate::protocol::{Acquire, Collect, ErrorName, Failure, LeaseAsked, OnLost};

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
            return Err(bad("this part is confirmed already: renew it"));
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
            command: collect.command,
            note: collect.note,
            owner_fd: None,
            with_children: false,
            jobserver: false,
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

    /// Whether a part that is not confirmed depends on a connection that is newer than this one.
    fn belongs_to_newer(&self, request: RequestId, id: ConnId) -> bool {
        let waits_on = self.waiters.get(request).and_then(|waiter| waiter.conn);
        let owner = waits_on.or_else(|| self.conns.with_provisional(request));
        let accepted = |id| self.conns.peek(id).map(|conn| conn.accepted_ticks);
        owner.is_some_and(|owner| accepted(owner) > accepted(id))
    }

    /// Lets others know over which nodes a request is made, for as long as its connection is open. The table
    /// knows it only while it waits or holds something here.
    pub(crate) fn announce(&mut self, id: ConnId, request: &Arc<Request>) -> Option<Refusal> {
        request.over_nodes.as_ref()?;
        let table = &self.ledger.table;
        // What the table knows it refuses by itself, so that the history has it.
        let is_news = |theirs: &&Request| table.tagged(theirs.tag).is_none();
        let differs = self
            .conns
            .over_nodes(id)
            .filter(is_news)
            .find_map(|theirs| differs_in_nodes(request, theirs));
        if differs.is_none()
            && let Some(conn) = self.conns.get(id)
        {
            conn.over_nodes = Some(Arc::clone(request));
        }
        differs
    }

    /// Whether this node keeps a lease over nodes for so long. After the loss of its state it waits for no
    /// longer time.
    pub(crate) fn check_ttl_over_nodes(&self, ttl_ms: u64) -> Result<(), Failure> {
        let longest = self.limits.nodes_longest_ttl;
        if u128::from(ttl_ms) <= longest.as_millis() {
            return Ok(());
        }
        let message = format!(
            "a lease over nodes lives for at most {} here, not {ttl_ms} ms",
            stated(longest)
        );
        let hint = "`longest_ttl` under `[nodes]` in the configuration of that node says so";
        Err(Failure::new(ErrorName::BadRequest, message).hint(hint))
    }

    /// Whether a list of nodes can be that of a request to this node.
    fn check_list(&mut self, collect: &Collect) -> Result<(), Failure> {
        let nodes = &collect.nodes;
        if nodes.len() > NODES_MAX {
            let count = nodes.len();
            return Err(bad(&format!("a request names at most {NODES_MAX} nodes, not {count}")));
        }
        if nodes.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(bad("`nodes` names each node once, in ascending order"));
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
