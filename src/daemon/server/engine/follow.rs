//! Follows the log that many hosts share: carries out the events of the member.
//!
//! Invariant: each event is carried out on the table that the previous event left. Clients get no
//! message about changes that concern only the requests of other hosts.

use anyhow::Context;

use crate::core::{Change, FrameId, RequestId, Revision, Snapshot, Table, Token};
use crate::daemon::calls::completion::Completion;
use crate::daemon::cluster::not_a_member::not_yet;
use crate::daemon::server::Server;
use crate::daemon::store::ledger::NO_HOST;
use crate::daemon::waiters::regrant::granted;
use crate::host::{Event, LostWhy};
use crate::protocol::Failure;
use crate::sys::clock;

impl Server {
    /// Carries out the events that came from the engine.
    ///
    /// # Errors
    /// The table cannot follow the log. The daemon then has to end.
    pub(crate) fn follow_engine(&mut self) -> anyhow::Result<()> {
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        cluster.begin_turn();
        while let Some(event) = self.cluster.as_mut().and_then(|it| it.next_event()) {
            self.carry_out_event(event)?;
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.keep_deadline();
        }
        Ok(())
    }

    fn carry_out_event(&mut self, event: Event) -> anyhow::Result<()> {
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        match event {
            Event::Entry { revision, entry, ticket } => {
                self.heed_our_end(&entry.change);
                let proposed = ticket.and_then(|it| self.cluster.as_mut()?.in_flight.take(it));
                if let (Some(proposed), Some(cluster)) = (&proposed, &mut self.cluster) {
                    let took = clock::now().saturating_duration_since(proposed.since);
                    cluster.count_append(took);
                }
                let recovered = self.ledger.table.recovery().is_some();
                let then = proposed.as_ref().map_or(&Completion::Nothing, |it| &it.then);
                let (applied, before) = self.follow(revision, &entry, then);
                if let (Change::Withdraw { request, .. }, Some(cluster)) =
                    (&entry.change, &mut self.cluster)
                {
                    cluster.in_flight.withdrawn(*request);
                }
                if let Some(proposed) = proposed {
                    self.came_back(proposed, applied, &before);
                }
                if let Change::Suspend { request } = entry.change
                    && !self.waiters.is_suspended(request)
                {
                    self.tell_after_all(request);
                }
                self.follow_recovery(recovered);
                if matches!(entry.change, Change::HostGone { .. }) && self.ledger.is_member() {
                    // Requests may have waited for the end of an earlier incarnation.
                    self.ask_for_those_waiting();
                }
            }
            Event::Restore { snapshot, revision } => self.replace_table(snapshot, revision)?,
            Event::Absorbed { ticket, revision } => self.absorbed(ticket, revision),
            Event::Dropped { ticket } => self.dropped(ticket),
            Event::Clear => self.clear(),
            Event::Joined { host, adopted } => self.joined(host, adopted),
            Event::Lost { host, why } => self.lost(host, &why),
            Event::SnapshotWanted => {
                cluster.store(&self.ledger.table.snapshot());
            }
            Event::Away(outage) => {
                if outage.refused {
                    cluster.end_if_seen(&outage)?;
                    tracing::error!(hint = outage.hint, "cannot use the engine: {}", outage.why);
                } else {
                    tracing::warn!("cannot reach the engine: {}", outage.why);
                }
                cluster.note_away(outage);
                self.due.changed = true;
            }
            Event::Back => {
                tracing::info!("the engine is reachable again");
                cluster.note_back();
                self.due.changed = true;
            }
            Event::Full(full) => {
                cluster.note_full(full);
                self.due.changed = true;
            }
            Event::Hindered(outage) => {
                let outage = cluster.dated(outage, &self.ledger.table);
                cluster.end_if_seen(&outage)?;
                tracing::error!(hint = outage.hint, "cannot join: {}", outage.why);
                cluster.note_hindered(outage);
                self.due.changed = true;
            }
            Event::Unhindered => {
                tracing::info!("can join again");
                cluster.note_unhindered();
                self.due.changed = true;
            }
            Event::Present => self.resume_put_off(),
        }
        Ok(())
    }

    /// Handles the entry that declares our incarnation gone. Looks up our holds before the entry is
    /// applied, because the table no longer contains them afterwards.
    fn heed_our_end(&mut self, change: &Change) {
        let (host, by) = match change {
            // This host left by itself.
            Change::HostGone { host, by } if host == by => return,
            Change::HostGone { host, by } => (*host, *by),
            Change::HostAdopt { old, new } => (*old, *new),
            _ => return,
        };
        self.lost(host, &LostWhy::Gone { by });
    }

    fn replace_table(
        &mut self,
        snapshot: Option<Snapshot>,
        revision: Revision,
    ) -> anyhow::Result<()> {
        let recovered = self.ledger.table.recovery().is_some();
        self.ledger.table = match &snapshot {
            Some(snapshot) => Table::restore(snapshot)
                .with_context(|| format!("the engine's snapshot at revision {revision}"))?,
            None => Table::default(),
        };
        self.due.changed = true;
        if self.ledger.host != NO_HOST {
            self.catch_up();
        }
        self.follow_recovery(recovered);
        if self.ledger.is_member() {
            self.ask_for_those_waiting();
        }
        Ok(())
    }

    /// Looks up what the skipped entries decided for this host, after the table was replaced as a
    /// whole.
    fn catch_up(&mut self) {
        let requests: Vec<RequestId> = self.waiters.iter().map(|(request, _)| request).collect();
        for request in requests {
            let table = &self.ledger.table;
            if table.waiter(request).is_some() {
                continue;
            }
            if let Some(hold) = table.hold_of(request) {
                let granted = granted(table, hold);
                self.waiters.queue_grant_once(granted);
            } else if let Some(conn) = self.waiters.remove(request).and_then(|it| it.conn) {
                self.end_unseen(conn);
            }
        }
        let table = &self.ledger.table;
        self.waiters.retain_suspended(|request| table.waiter(request).is_some());
        let recorded = self.cluster.as_ref().map(|cluster| cluster.recorded_tokens());
        let mut ended: Vec<Token> = recorded.unwrap_or_default();
        ended.retain(|token| self.ledger.table.hold(*token).is_none());
        for token in ended {
            self.hold_ended(token);
        }
        let frames: Vec<FrameId> = self.owners.frames();
        for frame in frames.into_iter().filter(|id| self.ledger.table.frame(*id).is_none()) {
            self.owners.forget(frame);
        }
        self.leases.follow(&self.ledger.table, self.ledger.host);
        self.history.follow(&self.ledger.table, self.ledger.host);
        self.hooks.look_soon();
    }

    /// The failure for a client whose call cannot be served because this host is not a member.
    pub(crate) fn not_a_member(&self) -> Failure {
        let cluster = self.cluster.as_ref();
        cluster.map_or_else(not_yet, |cluster| cluster.not_a_member(&self.ledger))
    }
}
