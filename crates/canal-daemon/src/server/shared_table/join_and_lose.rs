//! Joins the table that many hosts share, loses a membership, follows a recovery, and decides
//! whether this host may rest.

use crate::cluster::end_commands::ToEnd;
use crate::lease_deadlines::Leases;
use crate::membership::LostWhy;
use crate::net::call_state::{PendingAcquire, Subject};
use crate::server::Server;
use crate::server::call_step::ended_unseen;
use crate::store::table_and_log::NO_HOST;
use canal_core::HostId;
use canal_history::Ending;

impl Server {
    /// Handles the event that this host has become a member under this id.
    pub(crate) fn joined(&mut self, host: HostId, adopted: Option<HostId>) {
        tracing::info!(host = host.0, adopted = adopted.map(|host| host.0), "joined");
        self.due.changed = true;
        if let Err(error) = self.decide.begin_membership(host, &self.conns) {
            tracing::error!(%error, "cannot create a deadline page; the daemon is exiting");
            self.stopping = true;
            return;
        }
        if let Some(words) = self.decide.recovery_words() {
            tracing::warn!("{words}");
        }
        self.take_over();
        // Requests that the table lacks ended before the earlier incarnation was adopted, or with
        // it.
        let ending = if adopted.is_some() { Ending::Ended } else { Ending::Lost };
        self.observe.history.take_in_left(self.decide.table(), &ending);
        self.follow_configuration();
        self.ask_for_those_waiting();
        self.resume_put_off();
    }

    /// Handles the loss of our incarnation, and with it of all holds of its processes. The next
    /// incarnation asks again for the waiting requests, behind requests that other hosts have made
    /// meanwhile.
    pub(crate) fn lost(&mut self, host: HostId, why: &LostWhy) {
        if host == NO_HOST || host != self.decide.host() {
            return;
        }
        tracing::error!(host = host.0, "lost all holds of this host: {why}");
        self.end_commands(ToEnd::Lost(why));
        self.observe.history.lose();
        // This drops everything known about the waiters, including grants that have not been sent
        // yet.
        let waiters = std::mem::take(&mut self.waiters);
        let table = self.decide.table();
        let again = waiters.iter().filter_map(|(id, _)| {
            let newcomer = table.request(id).map(|asked| {
                let frame = table.frame_of_request(id).filter(|_| asked.provisional);
                let pidfd = frame.and_then(|frame| self.owners.of(frame)?.try_clone().ok());
                PendingAcquire::again(asked.clone(), pidfd)
            });
            Some((self.conns.waiter(id)?, newcomer))
        });
        let again: Vec<_> = again.collect();
        self.leases = Leases::default();
        self.due.come_back = None;
        self.owners.forget_all();
        self.children.remove_all(&mut self.owners);
        self.conns.disown(None);
        for (id, request) in again {
            match request {
                Some(request) => {
                    let step = self.wait_for_membership(id, request);
                    self.carry_out(id, Ok(step));
                }
                None => self.carry_out(id, Err(ended_unseen())),
            }
        }
        self.due.changed = true;
    }

    /// Reports a change of the recovery, after an entry was applied or the table was replaced.
    /// `before`: whether a recovery was under way before that.
    ///
    /// While a recovery lasts, requests wait here and the daemon sends no grant.
    ///
    /// Invariant: once a recovery is over, the daemon asks again for each request that was refused
    /// because of it.
    pub(crate) fn follow_recovery(&mut self, before: bool) {
        let now = self.decide.table().recovery().is_some();
        self.decide.follow_recovery();
        // Before it joins, a host reads old entries whose recoveries ended long ago.
        if now == before || !self.decide.is_member() {
            return;
        }
        self.due.changed = true;
        if let Some(words) = self.decide.recovery_words() {
            tracing::warn!("{words}");
        } else {
            tracing::info!("the table has recovered; granting locks again");
            self.ask_for_those_waiting();
        }
    }

    /// Passes the calls of this turn to the engine, and whether something here depends on the
    /// batches of other hosts. A process that holds a lock does not depend on them: its own host
    /// ends the hold, and a renewal reports a lost membership. Only a hook must learn at once that
    /// another host released the lock by force. A lease does depend on them, because its renewal
    /// must not wait for a read.
    ///
    /// An engine that wakes every listening host for each batch does not wake a resting one.
    ///
    /// Invariant: this host keeps listening while a batch of another host can immediately affect a
    /// client or a lease of this host.
    pub(crate) fn ask_engine(&mut self) {
        let table = self.decide.table();
        let holds = || table.frames_of_host(self.decide.host()).next().is_some();
        let watchers = [Subject::Report, Subject::Status, Subject::Leader];
        let is_needed = self.decide.is_shared()
            && (self.waiters.iter().next().is_some()
                || self.leases.next_end().is_some()
                || table.recovery().is_some()
                || self.observe.hooks.are_told_of_ends() && holds()
                || watchers.iter().any(|it| self.conns.waits(*it).next().is_some()));
        self.decide.ask_engine(is_needed);
    }
}
