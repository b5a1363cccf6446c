//! The daemon at work: one thread owns all state, and works in turns ([`turn`]).

pub(super) mod batch;
pub(super) mod configuration;
pub(super) mod dispatch;
pub(super) mod engine;
mod fair;
mod hooks;
mod jobserver;
mod permission;
mod queries;
mod removed_files;
mod requests;
mod timers;
mod turn;
pub(super) mod waiting;

use std::task::Context;
use std::time::Duration;

use crate::daemon::calls::in_flight::InFlight;
use crate::daemon::cluster::Cluster;
use crate::daemon::cluster::not_a_member::not_yet;
use crate::daemon::due::Due;
use crate::daemon::history::recorder::History;
use crate::daemon::hooks::configured::Hooks;
use crate::daemon::jobserver::builds::Jobservers;
use crate::daemon::limits::Limits;
use crate::daemon::metrics::exporter::Exporter;
use crate::daemon::net::accept_backlog::Accepted;
use crate::daemon::net::adaptive_spin::AdaptiveSpin;
use crate::daemon::net::connection_limits::ConnectionLimits;
use crate::daemon::net::connections::Conns;
use crate::daemon::net::unread_reports::Reports;
use crate::daemon::own_user::OwnUser;
use crate::daemon::permissions::Permissions;
use crate::daemon::processes::children::Children;
use crate::daemon::processes::owners::Owners;
use crate::daemon::runtime_dir::RuntimeDir;
use crate::daemon::server::configuration::in_force::InForce;
use crate::daemon::store::ledger::Ledger;
use crate::daemon::store::node::Node;
use crate::daemon::view::Shown;
use crate::daemon::view::size_notes::ToldSizes;
use crate::daemon::waiters::leases::Leases;
use crate::daemon::waiters::waiting::Waiters;
use crate::protocol::{DaemonInfo, Failure};

/// The daemon at work.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) about: DaemonInfo,
    pub(crate) runtime_dir: RuntimeDir,
    pub(crate) in_force: InForce,
    /// The limits of the configuration in force.
    pub(crate) limits: Limits,
    /// The permissions of the configuration in force.
    pub(crate) permissions: Permissions,
    pub(crate) ledger: Ledger,
    /// The changes of this host that the log has not returned yet.
    pub(crate) in_flight: InFlight,
    /// This host's part in a table that many hosts share. `None` with the embedded journal.
    pub(crate) cluster: Option<Box<Cluster>>,
    pub(crate) owners: Owners,
    pub(crate) children: Children,
    /// Builds whose jobs take slots.
    pub(crate) jobservers: Jobservers,
    pub(crate) conns: Conns,
    pub(crate) waiters: Waiters,
    pub(crate) leases: Leases,
    pub(crate) reports: Reports,
    /// The records of requests that have ended.
    pub(crate) history: History,
    /// The programs that are run at such an end, a long wait or a long hold.
    pub(crate) hooks: Hooks,
    /// Offers metrics on a socket, if the configuration names one.
    pub(crate) exporter: Option<Exporter>,
    pub(crate) told_sizes: ToldSizes,
    pub(crate) due: Due,
    pub(crate) spin: AdaptiveSpin,
    /// This daemon as one of several nodes.
    pub(crate) node: Node,
    pub(crate) own_user: OwnUser,
    /// Whether the daemon is ending. It then accepts no new requests.
    pub(crate) stopping: bool,
}

impl Server {
    /// Accepts new connections.
    pub(crate) fn accept(&mut self) -> Accepted {
        let mut connections_max = self.connections_max();
        if self.conns.len() >= connections_max {
            self.owners.forget_resting();
            connections_max = self.connections_max();
        }
        let each = self.limits.connections_per_user;
        let room = ConnectionLimits { all: connections_max, each, own: self.about.uid };
        self.runtime_dir.listener.accept(&mut self.conns, room, self.limits.connection_idle)
    }

    fn connections_max(&self) -> usize {
        let builds = self.jobservers.descriptors();
        self.limits.connections(self.owners.len() + self.children.len() + builds)
    }

    /// Spins briefly before the daemon sleeps. Returns whether there is something to do now.
    pub(crate) fn spins(&mut self) -> bool {
        let Self { spin, conns, .. } = self;
        spin.look(|| conns.wait(Some(Duration::ZERO)))
    }

    /// Whether there is already something to do in the next turn.
    pub(crate) fn has_work(&self) -> bool {
        self.conns.has_work() || self.ledger.has_proposed()
    }

    /// Whether the engine has answered. If not, the answer will wake `context`.
    pub(crate) fn hears_engine(&mut self, context: &mut Context<'_>) -> bool {
        self.cluster.as_mut().is_some_and(|cluster| cluster.has_answers(context))
    }

    /// The table as a user may see it.
    pub(crate) fn shown(&self, viewer: u32) -> Shown<'_> {
        let shown = Shown::to(viewer, &self.ledger, &self.leases, &self.owners);
        Shown { children: Some(&self.children), summary: self.history.summary(), ..shown }
    }

    /// Whether a grant may be sent now.
    pub(crate) fn is_sure(&self) -> bool {
        let Some(cluster) = &self.cluster else { return true };
        self.ledger.is_member() && cluster.may_grant(&self.ledger.table)
    }

    /// The failure for a client whose call cannot be served because this host is not a member.
    pub(crate) fn not_a_member(&self) -> Failure {
        let cluster = self.cluster.as_ref();
        cluster.map_or_else(not_yet, |cluster| cluster.not_a_member(&self.ledger))
    }
}
