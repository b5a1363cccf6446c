//! Follows the log that many hosts share: carries out the events of the member.
//!
//! Invariant: each event is carried out on the table that the previous event left. Clients hear
//! nothing of changes that concern only the requests of other hosts.

use std::task::Context as TaskContext;

use anyhow::Context;

use crate::core::{Change, FrameId, RequestId, Revision, Rules, Snapshot, Table, Token};
use crate::daemon::calls::completion::{Applied, Completion};
use crate::daemon::cluster::engine_status::OngoingOutage;
use crate::daemon::net::conn_id::ConnId;
use crate::daemon::net::connection::CallState;
use crate::daemon::options::Unusable;
use crate::daemon::server::Server;
use crate::daemon::store::ledger::NO_HOST;
use crate::daemon::view::text::time;
use crate::daemon::waiters::regrant::granted;
use crate::host::{Event, LostWhy, Ticket};
use crate::log::engine::Outage;
use crate::protocol::{ErrorName, Failure};

impl Server {
    /// Carries out the events that came from the engine.
    ///
    /// # Errors
    /// The table cannot be what the log says. Then the daemon has to end.
    pub(crate) fn follow_engine(&mut self) -> anyhow::Result<()> {
        let Some(shared) = self.ledger.engine_mut() else { return Ok(()) };
        shared.begin_turn();
        while let Some(event) = self.ledger.engine_mut().and_then(|shared| shared.next_event()) {
            self.carry_out(event)?;
        }
        self.keep_deadline();
        Ok(())
    }

    /// Whether the engine has answered. If not, `context` is woken when it answers.
    pub(crate) fn hears_engine(&mut self, context: &mut TaskContext<'_>) -> bool {
        self.ledger.engine_mut().is_some_and(|shared| shared.poll(context).is_ready())
    }

    /// Passes the calls of this turn to the engine.
    pub(crate) fn ask_engine(&mut self) {
        if let Some(shared) = self.ledger.engine_mut() {
            shared.end_turn();
        }
    }

    fn carry_out(&mut self, event: Event) -> anyhow::Result<()> {
        match event {
            Event::Entry { revision, entry, ticket } => {
                self.heed_our_end(&entry.change);
                let proposed = ticket.and_then(|ticket| self.in_flight.take(ticket));
                let before = proposed.as_ref().map_or_else(Vec::new, |it| self.at_stake(&it.then));
                let recovered = self.ledger.table.recovery().is_some();
                let applied = self.ledger.apply_shared(revision, &entry);
                // Processes whose holds ended with an incarnation of ours did not release them and
                // may still run. The daemon looks for them in its own record before it joins.
                let host_is_gone = matches!(entry.change, Change::HostGone { .. });
                if self.ledger.is_member() || !host_is_gone {
                    self.take_note(&applied, matches!(entry.change, Change::End { .. }));
                }
                if let Change::Withdraw { request, .. } = &entry.change {
                    self.in_flight.leaving.remove(request);
                }
                if let Some(proposed) = proposed {
                    self.came_back(proposed, applied, &before);
                }
                self.follow_recovery(recovered);
                if host_is_gone && self.ledger.is_member() {
                    // Requests may have waited for the end of an earlier incarnation.
                    self.ask_for_homeless();
                }
            }
            Event::Restore { snapshot, revision } => self.replace_table(snapshot, revision)?,
            Event::Absorbed { ticket, revision } => self.absorbed(ticket, revision),
            Event::Dropped { ticket } => self.dropped(ticket),
            Event::Clear => self.clear(),
            Event::Joined { host, adopted } => self.joined(host, adopted),
            Event::Lost { host, why } => self.lost(host, &why),
            Event::SnapshotWanted => {
                let snapshot = self.ledger.table.snapshot();
                if let Some(shared) = self.ledger.engine_mut() {
                    shared.store(&snapshot);
                }
            }
            Event::Away(outage) => {
                if outage.refused {
                    self.end_if_seen(&outage)?;
                    tracing::error!(
                        hint = outage.hint,
                        "the engine cannot be used: {}",
                        outage.why
                    );
                } else {
                    tracing::warn!("the engine cannot be reached: {}", outage.why);
                }
                self.engine_status.away =
                    Some(OngoingOutage::new(outage, self.engine_status.away.as_ref()));
                self.changed = true;
            }
            Event::Back => {
                tracing::info!("the engine can be reached again");
                self.engine_status.away = None;
                self.changed = true;
            }
            Event::Hindered(outage) => {
                self.end_if_seen(&outage)?;
                tracing::error!(hint = outage.hint, "cannot take part: {}", outage.why);
                self.engine_status.unable =
                    Some(OngoingOutage::new(outage, self.engine_status.unable.as_ref()));
                self.changed = true;
            }
            Event::Unhindered => {
                tracing::info!("can take part again");
                self.engine_status.unable = None;
                self.changed = true;
            }
        }
        Ok(())
    }

    /// Ends a daemon that runs in the foreground, if the record of holders is empty: a person sees
    /// the error and can start the daemon again.
    fn end_if_seen(&self, Outage { why, hint, .. }: &Outage) -> anyhow::Result<()> {
        if self.engine_status.lives_on || !self.holder_record.is_empty() {
            return Ok(());
        }
        let what = format!("cannot take part in {}: {why}", self.engine_status.name);
        Err(match hint {
            Some(hint) => Unusable { what, hint: hint.clone().into() }.into(),
            None => anyhow::Error::msg(what),
        })
    }

    /// Handles the entry that declares our incarnation gone. Our holds are looked up before the
    /// entry is applied, because afterwards the table no longer contains them.
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
        let rules = Rules::Current;
        let recovered = self.ledger.table.recovery().is_some();
        self.ledger.table = match &snapshot {
            Some(snapshot) => Table::restore(snapshot, rules)
                .with_context(|| format!("the engine's snapshot at revision {revision}"))?,
            None => Table::new(rules),
        };
        self.changed = true;
        if self.ledger.host != NO_HOST {
            self.catch_up();
        }
        self.follow_recovery(recovered);
        if self.ledger.is_member() {
            self.ask_for_homeless();
        }
        Ok(())
    }

    /// Looks up in a table that was replaced as a whole what the skipped entries decided for this
    /// host.
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
                self.finish(conn, Err(ended_unseen()));
            }
        }
        let table = &self.ledger.table;
        self.waiters.retain_suspended(|request| table.waiter(request).is_some());
        let mut ended: Vec<Token> = self.holder_record.tokens();
        ended.retain(|token| self.ledger.table.hold(*token).is_none());
        for token in ended {
            self.hold_ended(token);
        }
        let frames: Vec<FrameId> = self.owners.frames();
        for frame in frames.into_iter().filter(|id| self.ledger.table.frame(*id).is_none()) {
            self.owners.forget(frame);
        }
        self.leases.follow(&self.ledger.table, self.ledger.host);
    }

    /// One of our changes is part of a table that was replaced as a whole.
    fn absorbed(&mut self, ticket: Ticket, revision: Revision) {
        let Some(proposed) = self.in_flight.take(ticket) else { return };
        let outcomes = match &proposed.then {
            Completion::Renew(renewing) => renewing.unseen(&self.ledger.table),
            _ => Vec::new(),
        };
        let applied = Applied { revision, outcomes };
        if let Completion::Ask(newcomer) = &proposed.then
            && !proposed.abandoned
        {
            return self.find_absorbed(newcomer.conn, RequestId(revision.0));
        }
        if let (Some(id), false) = (proposed.then.conn(), proposed.abandoned) {
            self.done(id);
            let done = match proposed.then {
                Completion::Confirm { id } => self.confirmed(id),
                Completion::Renew(renewing) => self.renewed(*renewing, &applied),
                // The table is the same whether the change had an effect or found nothing to do, so
                // the result is unknown.
                _ => Err(done_unseen()),
            };
            if let Err(failure) = done {
                self.fail(id, &failure);
            }
            return;
        }
        self.came_back(proposed, applied, &[]);
    }

    fn find_absorbed(&mut self, id: ConnId, request: RequestId) {
        self.done(id);
        let table = &self.ledger.table;
        if let Some(waiter) = table.waiter(request) {
            self.waiters.add(waiter, table.session(waiter.frame));
            self.begin_to_wait(id, request, true);
        } else if let Some(hold) = table.hold_of(request) {
            let granted = granted(table, hold);
            self.waiters.add_granted(hold, table.session(hold.frame), id);
            self.waiters.queue_grant(granted);
            if let Some(conn) = self.conns.get(id) {
                conn.doing = CallState::Waits(request);
            }
        } else {
            self.fail(id, &ended_unseen());
        }
    }

    /// The failure for a client whose call cannot be served because this host is not a member.
    pub(crate) fn not_a_member(&self) -> Failure {
        if let Some(OngoingOutage { why, hint, since, .. }) = self.engine_status.refusal() {
            let message = format!("the daemon cannot use its engine since {}: {why}", time(*since));
            let failure = Failure::new(ErrorName::EngineAway, message);
            return match hint {
                Some(hint) => failure.hint(hint),
                None => failure,
            };
        }
        if let Some(OngoingOutage { why, since, .. }) = &self.engine_status.away {
            let message = format!("the engine cannot be reached since {}: {why}", time(*since));
            return Failure::new(ErrorName::EngineAway, message).hint(
                "`canal status` shows when it can be reached again; what is held stays held as \
                 long as that is safe",
            );
        }
        if let Some(message) = self.terminator.awaited_words() {
            return Failure::new(ErrorName::EngineAway, message)
                .hint("end them; this host asks for no lock as long as they run");
        }
        if let Some(message) = self.recovery_words() {
            return Failure::new(ErrorName::EngineAway, message)
                .hint("`canal status` shows how long that takes; what is held stays held");
        }
        let message = if self.ledger.host == NO_HOST {
            "this host does not take part in the engine's table yet"
        } else {
            "the engine does not answer"
        };
        Failure::new(ErrorName::EngineAway, message).hint("`canal status -v` shows how far it is")
    }

    /// Fails the calls that wait for the log while the engine refuses this host and a person has to
    /// act. Once this host has been a member, requests that may wait keep waiting.
    pub(crate) fn fail_pending(&mut self) {
        if self.engine_status.let_in || self.engine_status.refusal().is_none() {
            return;
        }
        let ids: Vec<_> = self.in_flight.pending.keys().copied().collect();
        for id in ids {
            let failure = self.not_a_member();
            self.give_up_waiting(id, &failure);
        }
    }
}

/// The failure for a client whose request ended while this host could not follow the log.
fn ended_unseen() -> Failure {
    let message = "the request ended while the engine's log could not be followed";
    Failure::new(ErrorName::EngineAway, message).hint("ask again")
}

/// The failure for a client whose change is in the log, but whose result this host did not see.
fn done_unseen() -> Failure {
    let message = "it reached the engine, but what came of it could not be followed";
    Failure::new(ErrorName::EngineAway, message).hint("`canal status` shows how things are now")
}
