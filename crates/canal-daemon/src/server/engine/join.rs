//! Joins the table that many hosts share, and leaves it.
//!
//! Invariant: this host verifies everything that it takes over from an earlier incarnation before
//! it asks for anything new.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::calls::pending_acquire::PendingAcquire;
use crate::cluster::end_commands::Watched;
use crate::host::LostWhy;
use crate::processes::owners::find;
use crate::server::Server;
use crate::store::ledger::NO_HOST;
use crate::store::recover::token_by_clock;
use crate::waiters::leases::Leases;
use crate::waiters::waiting::Waiter;
use canal_core::{
    BYPASS_MAX_DEFAULT, Change, FrameId, HostId, Owner, ProcessId, Request, RequestId, Table,
};
use canal_history::Ending;
use canal_sys::clock;
use canal_sys::process::Found;

impl Server {
    /// Handles the event that this host has become a member under this id.
    pub(crate) fn joined(&mut self, host: HostId, adopted: Option<HostId>) {
        tracing::info!(host = host.0, adopted = adopted.map(|host| host.0), "joined");
        self.ledger.host = host;
        self.due.changed = true;
        let Some(cluster) = &mut self.cluster else { return };
        if let Err(error) = cluster.begin_membership(host) {
            // Without a page, `canal run` could not end its command in time.
            tracing::error!(%error, "cannot create a deadline page; the daemon ends");
            self.stopping = true;
            return;
        }
        cluster.begin_watch(&self.conns);
        if let Some(words) = cluster.recovery_words(&self.ledger.table) {
            tracing::warn!("{words}");
        }
        self.take_over();
        // Requests that the table lacks ended before the earlier incarnation was adopted, or with
        // it.
        let ending = if adopted.is_some() { Ending::Ended } else { Ending::Lost };
        self.history.take_in_left(&self.ledger.table, &ending);
        self.follow_configuration();
        self.ask_for_those_waiting();
        self.resume_put_off();
    }

    /// Takes over this host's part of the table: the requests and holds of an adopted incarnation,
    /// and leases of hosts that are gone.
    fn take_over(&mut self) {
        let (table, host) = (&self.ledger.table, self.ledger.host);
        self.waiters.follow_table(table, host);
        self.leases = Leases::of_table(table, host);
        self.history.follow(table, host);
        self.hooks.look_soon();
        let frames: Vec<_> = table.frames_of_host(host).collect();
        let enclosing: BTreeSet<FrameId> =
            table.frames().filter_map(|frame| frame.parent).collect();
        let own = table.holds().filter(|hold| frames.binary_search(&hold.frame).is_ok());
        let own: Vec<_> = own.cloned().collect();
        let provisional = own.iter().filter(|hold| hold.provisional);
        self.waiters.expect_claims(provisional.map(|hold| hold.request));
        self.stop_those_unknown();
        if let Some(cluster) = &mut self.cluster {
            cluster.take_over(&own);
        }
        for id in frames {
            let Some(frame) = self.ledger.table.frame(id).filter(|frame| !frame.ended) else {
                continue;
            };
            if let Owner::Process(process) = frame.owner {
                self.prove(id, process, enclosing.contains(&id));
            }
        }
        for hold in own.iter().filter(|hold| hold.asked.children) {
            if let Err(error) = self.children.take_over(hold.token, hold.asked.tag) {
                tracing::warn!(%error, token = hold.token.0, "cannot open its FIFO");
            }
        }
        self.children.sweep();
        self.await_orphans();
        if self.waiters.expects_any() {
            self.await_detached();
        }
    }

    /// Kills the processes whose grant the log does not know, because its history was rewritten.
    /// Until they are dead, this host asks for nothing and sends no grant.
    fn stop_those_unknown(&mut self) {
        let Some(cluster) = &mut self.cluster else { return };
        let watched = Watched { table: &self.ledger.table, owners: &self.owners };
        let now = clock::boottime_ms();
        cluster.schedule_unknown(watched, now);
        self.end_lost(now);
    }

    fn prove(&mut self, frame: FrameId, process: ProcessId, encloses: bool) {
        match find(process) {
            Found::Same(pidfd) if !pidfd.has_ended() => {
                // A process that only waits is recognized by its connection when it reconnects.
                let holds = self.ledger.table.holds_in(frame).next().is_some();
                if (encloses || holds)
                    && let Err(error) = self.owners.watch(frame, None, pidfd)
                {
                    tracing::warn!(%error, pid = process.pid, "cannot watch an owner");
                    self.owners.unverified.insert(frame);
                }
            }
            Found::Same(_) | Found::Gone => {
                self.history.ends_unseen(frame);
                self.end(frame);
            }
            Found::Unknown(error) => {
                tracing::warn!(pid = process.pid, %error, "cannot determine whether it still runs");
                self.owners.unverified.insert(frame);
            }
        }
    }

    /// Proposes the configuration's views and policy where the table has no other setting. Stored
    /// settings belong to all hosts, and the hosts' configurations may differ.
    fn follow_configuration(&mut self) {
        let table = &self.ledger.table;
        // The log is new. Its tokens must be greater than those of any earlier journal.
        if table.next_token() == Table::default().next_token() {
            let floor = Change::Floor { token: token_by_clock() };
            self.propose(floor);
        }
        let table = &self.ledger.table;
        let views = self.limits.views().iter();
        let unsaid: Vec<_> = views
            .filter(|(key, _)| table.stored(key).is_none())
            .map(|(key, view)| (key.clone(), Some(*view)))
            .collect();
        let bypass_max = self.cluster.as_ref().and_then(|cluster| cluster.bypass_max());
        let bypass_max = bypass_max.filter(|_| table.bypass_max() == BYPASS_MAX_DEFAULT);
        for (key, view) in unsaid {
            self.propose(Change::Resize { key, view });
        }
        if let Some(bypass_max) = bypass_max.filter(|max| *max != BYPASS_MAX_DEFAULT) {
            self.propose(Change::Policy { bypass_max });
        }
    }

    /// Handles the loss of our incarnation, and with it of all holds of its processes.
    pub(crate) fn lost(&mut self, host: HostId, why: &LostWhy) {
        if host == NO_HOST || host != self.ledger.host {
            return;
        }
        tracing::error!(host = host.0, "lost all holds of this host: {why}");
        let Some(cluster) = &mut self.cluster else { return };
        let watched = Watched { table: &self.ledger.table, owners: &self.owners };
        let now = clock::boottime_ms();
        cluster.lose_holds(why, watched, now);
        self.history.lose();
        self.lose_membership();
        self.end_lost(now);
        self.due.changed = true;
    }

    /// Handles the loss of the membership. The holds of its processes are void. The next
    /// incarnation asks again for the waiting requests, behind requests that other hosts have made
    /// meanwhile.
    fn lose_membership(&mut self) {
        self.ledger.host = NO_HOST;
        // This drops everything known about the waiters, including grants that have not been sent
        // yet.
        let waiters = self.waiters.forget_all();
        let again = waiters.iter().filter_map(|(request, waiter)| {
            Some((waiter.conn?, self.newcomer_again(*request, waiter)))
        });
        let again: Vec<_> = again.collect();
        self.in_flight.forget_withdrawals();
        self.leases = Leases::default();
        self.due.come_back = None;
        self.due.detached = None;
        self.owners.forget_all();
        self.children.remove_all(&mut self.owners);
        self.conns.disown_all();
        self.wait_for_next_incarnation(again);
    }

    /// Ends the membership when the daemon ends, if no frame depends on it, so that the other hosts
    /// need not wait until its TTL is over. Returns whether the withdrawal is under way.
    pub(crate) fn leave_unused(&mut self) -> bool {
        let (table, host) = (&self.ledger.table, self.ledger.host);
        let is_used = table.frames_of_host(host).next().is_some() || self.in_flight.len() > 0;
        self.cluster.as_mut().is_some_and(|cluster| !is_used && cluster.leave_unused())
    }

    fn newcomer_again(&self, id: RequestId, waiter: &Waiter) -> Option<PendingAcquire> {
        let table = &self.ledger.table;
        let asked: &Arc<Request> = match table.waiter(id) {
            Some(waiter) => &waiter.request,
            None => &table.hold_of(id)?.asked,
        };
        let pidfd = if asked.provisional {
            let frame = table.waiter(id).map(|waiter| waiter.frame);
            let frame = frame.or_else(|| table.hold_of(id).map(|hold| hold.frame))?;
            self.owners.of(frame).and_then(|pidfd| pidfd.try_clone().ok())
        } else {
            None
        };
        Some(PendingAcquire::again(waiter.conn?, asked.clone(), waiter.more, pidfd))
    }
}
