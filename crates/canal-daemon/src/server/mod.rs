//! The daemon at work: one thread owns all state, and works in turns ([`turn`]).

pub(super) mod call_step;
mod check_permissions_and_quota;
mod due_work_and_exit;
mod find_owner_and_parent;
mod follow_log;
mod job_tokens;
pub(super) mod observe;
mod process_ends_and_stops;
mod progress_and_watches;
mod requests;
mod send_grants;
mod shared_table;
pub(super) mod turn;

use std::num::NonZeroUsize;

use crate::calls::call::ConnId;
use crate::cluster::journal_or_engine::Decide;
use crate::config::effective::EffectiveConfig;
use crate::jobserver::builds::Jobservers;
use crate::lease_deadlines::Leases;
use crate::net::all_connections::{Accepted, Conns};
use crate::net::connection_limits::ConnectionLimits;
use crate::net::unread_reports::Reports;
use crate::options::Options;
use crate::processes::find_descendants::Children;
use crate::processes::watch_owners::Owners;
use crate::runtime_dir::claim::RuntimeDir;
use crate::server::observe::Observe;
use crate::store::node_identity::Node;
use crate::timers::{BoottimeTimer, Due};
use crate::view::size_notes::ToldSizes;
use crate::view::visible_table::Shown;
use crate::waiters::Waiters;
use canal_core::RequestId;
use canal_protocol::DaemonInfo;

/// The daemon at work.
#[derive(Debug)]
pub(crate) struct Server {
    pub about: DaemonInfo,
    pub options: Options,
    pub runtime_dir: RuntimeDir,
    pub effective: EffectiveConfig,
    /// The table and its log.
    pub decide: Decide,
    pub owners: Owners,
    pub children: Children,
    /// Builds whose jobs take slots.
    pub jobservers: Jobservers,
    pub conns: Conns,
    pub waiters: Waiters,
    pub leases: Leases,
    pub reports: Reports,
    /// Records, hooks and metrics.
    pub observe: Observe,
    pub told_sizes: ToldSizes,
    pub due: Due,
    /// Wakes the daemon for deadlines that also pass while the machine is suspended.
    pub timer: BoottimeTimer,
    /// This daemon as one of several nodes.
    pub node: Node,
    /// Whether the daemon is ending. It then accepts no new requests.
    pub stopping: bool,
}

impl Server {
    /// Accepts new connections, and reads what their clients have sent.
    pub(crate) fn accept(&mut self) -> Accepted {
        let mut connections_max = self.connections_max();
        if self.conns.len() >= connections_max {
            self.owners.forget_resting();
            connections_max = self.connections_max();
        }
        let limits = &self.effective.config.limits;
        let each = limits.connections_per_user.map(NonZeroUsize::get);
        let room = ConnectionLimits { all: connections_max, each, own: self.about.uid };
        self.runtime_dir.listener.accept(&mut self.conns, room, limits.connection_idle)
    }

    fn connections_max(&self) -> usize {
        let builds = self.jobservers.descriptors();
        self.effective.connections(self.owners.len() + self.children.len() + builds)
    }

    /// Whether there is already something to do in the next turn.
    pub(crate) fn has_work(&self) -> bool {
        self.conns.has_work() || self.decide.has_proposed()
    }

    /// Ends the wait of a request. Returns the connection whose call waits for it.
    #[must_use = "a call may wait for it"]
    pub(crate) fn end_waiter(&mut self, request: RequestId) -> Option<ConnId> {
        self.waiters.remove(request)?;
        self.conns.waiter(request)
    }

    /// The table as a user may see it.
    pub(crate) fn shown(&self, viewer: u32) -> Shown<'_> {
        let shown = Shown::to(viewer, self.decide.ledger(), &self.leases, &self.owners);
        Shown {
            children: Some(&self.children),
            summary: self.observe.history.summary.as_deref(),
            ..shown
        }
    }
}
