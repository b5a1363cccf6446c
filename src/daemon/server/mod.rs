//! The daemon at work: one thread owns all state, and does all work in turns.
//!
//! A turn carries out a [`Batch`] in this order: closed connections and deaths, releases and
//! renewals, requests. It records the decisions, and only then sends the replies. If many clients
//! call at once, some calls are recorded and answered before the next calls are served. No
//! connection is read in the middle of a turn.
//!
//! Invariant: a turn applies every death that was reported before it, before it answers a call or
//! sends a grant.

pub(super) mod batch;
pub(super) mod configuration;
pub(super) mod dispatch;
pub(super) mod engine;
mod fair;
mod hooks;
mod jobserver;
mod permission;
mod queries;
mod requests;
mod restore;
mod timers;
pub(super) mod waiting;

use std::io;
use std::task::Context;
use std::time::Duration;

use crate::daemon::calls::conn_id::ConnId;
use crate::daemon::cluster::Cluster;
use crate::daemon::due::Due;
use crate::daemon::history::recorder::History;
use crate::daemon::hooks::configured::Hooks;
use crate::daemon::jobserver::builds::Jobservers;
use crate::daemon::limits::{CALLS_PER_TURN, Limits};
use crate::daemon::metrics::exporter::Exporter;
use crate::daemon::net::accept_backlog::Accepted;
use crate::daemon::net::adaptive_spin::AdaptiveSpin;
use crate::daemon::net::connection::Connection;
use crate::daemon::net::connection_limits::ConnectionLimits;
use crate::daemon::net::connections::Conns;
use crate::daemon::net::reply_queue::Reports;
use crate::daemon::permissions::Permissions;
use crate::daemon::processes::children::Children;
use crate::daemon::processes::owners::Owners;
use crate::daemon::runtime_dir::RuntimeDir;
use crate::daemon::server::batch::Batch;
use crate::daemon::server::configuration::in_force::InForce;
use crate::daemon::store::ledger::Ledger;
use crate::daemon::store::node::Node;
use crate::daemon::view::Shown;
use crate::daemon::view::size_notes::ToldSizes;
use crate::daemon::waiters::leases::Leases;
use crate::daemon::waiters::waiting::Waiters;
use crate::protocol::DaemonInfo;
use crate::sys::clock;

/// After this many connections were served, they are answered, even if other connections of the
/// same turn wait. One more write of the journal costs less than clients that sleep until a long
/// turn is over: they take a while to wake, and the daemon has nothing to do meanwhile
/// (docs/performance.md).
const ANSWERED_AT_ONCE: usize = 12;

/// A turn is split into about this many parts at most: with hundreds of clients, some are awake
/// anyway.
const PARTS_MAX: usize = 4;

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
    /// What ended.
    pub(crate) history: History,
    /// Who is told of it.
    pub(crate) hooks: Hooks,
    /// Offers metrics on a socket, if the configuration says so.
    pub(crate) exporter: Option<Exporter>,
    pub(crate) told_sizes: ToldSizes,
    pub(crate) due: Due,
    pub(crate) spin: AdaptiveSpin,
    /// This daemon as one of several nodes.
    pub(crate) node: Node,
    /// Whether the daemon is ending. New requests are not accepted then.
    pub(crate) stopping: bool,
}

impl Server {
    /// Reads what arrived, and carries it out.
    ///
    /// # Errors
    /// A decision cannot be recorded. The daemon then has to end without a reply: the next daemon
    /// goes on from what is recorded.
    pub(crate) fn turn(&mut self) -> anyhow::Result<()> {
        self.stop_in_time();
        let batch = Batch::take(self);
        self.carry_out_batch(batch)
    }

    /// Decides on a batch, records the decisions, and answers.
    ///
    /// # Errors
    /// As [`Self::turn`].
    pub(crate) fn carry_out_batch(&mut self, mut batch: Batch) -> anyhow::Result<()> {
        let deaths = !batch.ended.frames.is_empty();
        for (frame, pidfd) in std::mem::take(&mut batch.ended.pidfds) {
            let descriptors = self.limits.connections(0);
            self.history.keep_exit(frame, pidfd, descriptors);
        }
        for disconnected in std::mem::take(&mut batch.disconnected) {
            self.disconnect(disconnected);
        }
        for frame in std::mem::take(&mut batch.ended.frames) {
            #[cfg(test)]
            if crate::sim::is_broken(crate::sim::Rule::DeathsAreNoticed) && frame.0 % 8 == 0 {
                continue;
            }
            self.end(frame);
        }
        for token in std::mem::take(&mut batch.ended.fifos) {
            self.end_of_writers(token);
        }
        self.follow_engine()?;
        self.settle();
        let now = clock::now();
        self.on_time(now);
        self.reload_if_asked();
        self.end_readings();
        self.retry_deferred(deaths);
        self.serve(&batch)?;
        self.share_slots(now);
        self.inform(now);
        self.serve_reports(&batch);
        self.end_searches();
        self.give_metrics();
        self.answer_the_forgotten();
        #[cfg(test)]
        if crate::sim::is_broken(crate::sim::Rule::RecordsComeFirst) {
            self.conns.flush();
        }
        self.ledger.commit()?;
        self.jobservers.deliver();
        if let Some(cluster) = &mut self.cluster {
            cluster.ask_engine();
        }
        self.conns.flush();
        self.tell_hooks();
        self.history.hand_over();
        self.history.note_open(now);
        self.ledger.tidy();
        self.look_ahead(now);
        self.set_alarm()?;
        Ok(())
    }

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

    /// Spins for a moment before the daemon sleeps. Returns whether there is something to do now.
    pub(crate) fn spins(&mut self) -> bool {
        let Self { spin, conns, .. } = self;
        spin.look(|| conns.wait(Some(Duration::ZERO)))
    }

    /// Sleeps until there is something to do.
    pub(crate) fn sleep(&mut self) {
        let time = self.time_to_sleep();
        let begun = clock::now();
        if self.conns.wait(time) {
            self.spin.slept(clock::now().saturating_duration_since(begun));
        }
    }

    /// Whether there is already something to do for the next turn.
    pub(crate) fn has_work(&self) -> bool {
        self.conns.has_work()
    }

    /// Whether the engine has answered. If not, `context` is woken when it answers.
    pub(crate) fn hears_engine(&mut self, context: &mut Context<'_>) -> bool {
        self.cluster.as_mut().is_some_and(|cluster| cluster.has_answers(context))
    }

    /// Serves the calls that came, releases and renewals first. Leases end after the renewals that
    /// came in time, even if the daemon could not read them until now.
    fn serve(&mut self, batch: &Batch) -> io::Result<()> {
        let mut leases_over_at = batch.leases_over_at;
        let mut left = CALLS_PER_TURN;
        loop {
            self.settle();
            let active = self.conns.take_active();
            let active = self.in_turns(active);
            if let Some(now) = leases_over_at.take() {
                // Every renewal that was read is served before a lease ends, however many calls
                // there are.
                let mut all = usize::MAX;
                self.serve_each(batch, &active, &mut all, Self::next_goes_first)?;
                self.end_leases(now);
            } else {
                self.serve_each(batch, &active, &mut left, Self::next_goes_first)?;
            }
            self.settle();
            if active.is_empty() && !self.conns.has_active() {
                return Ok(());
            }
            let is_ready =
                |server: &Self, id| server.conns.peek(id).is_some_and(Connection::is_ready);
            self.serve_each(batch, &active, &mut left, is_ready)?;
            if left == 0 {
                // The next turn comes only if a connection has more calls.
                self.settle();
                self.leave_for_next_turn(&active);
                return Ok(());
            }
            self.conns.reuse(active);
        }
    }

    /// Serves the queued calls of each connection, as long as the next call `may` be served and
    /// calls are `left` for this turn. Records and answers some connections at a time.
    fn serve_each(
        &mut self,
        batch: &Batch,
        active: &[ConnId],
        left: &mut usize,
        may: impl Fn(&Self, ConnId) -> bool,
    ) -> io::Result<()> {
        let at_once = ANSWERED_AT_ONCE.max(active.len() / PARTS_MAX);
        let mut served = 0;
        for id in active {
            if !may(self, *id) {
                continue;
            }
            if served >= at_once && !self.ledger.waits_for_disk() {
                self.ledger.commit()?;
                self.conns.flush();
                served = 0;
            }
            while *left > 0 && may(self, *id) {
                *left -= 1;
                self.serve_one(batch, *id);
            }
            served += 1;
        }
        Ok(())
    }

    fn next_goes_first(&self, id: ConnId) -> bool {
        let conn = self.conns.peek(id).filter(|conn| conn.is_ready());
        conn.and_then(|conn| conn.calls.front()).is_some_and(|call| call.asked.goes_first())
    }

    /// The table as a user may see it.
    pub(crate) fn shown(&self, viewer: u32) -> Shown<'_> {
        let shown = Shown::to(viewer, &self.ledger, &self.leases, &self.owners);
        Shown { children: Some(&self.children), summary: self.history.summary(), ..shown }
    }
}
