//! Decides: the table and its log, and this host's part in a table that many hosts share.
//!
//! The embedded journal returns a change within the turn. An engine reports later where the change
//! landed among those of all hosts. Until then the change is [in
//! flight](crate::calls::in_flight).
//!
//! Invariant: only an entry that the log returned changes the table. So a proposal changes nothing
//! in the table, and a caller sees the same table before and after it.

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context as TaskContext, Waker};
use std::time::Instant;

use anyhow::Context;

use crate::calls::in_flight::{Completion, InFlight, Proposed, VOID};
use crate::cluster::end_commands::{Terminator, ToEnd, Watched};
use crate::cluster::engine_required::SharedMarker;
use crate::cluster::health::not_yet;
use crate::cluster::member_and_engine::{self, Cluster, now};
use crate::membership::{Chain, Event, LostWhy, Ticket};
use crate::metrics::counters::APPENDS;
use crate::net::all_connections::Conns;
use crate::processes::holder_record::Holder;
use crate::processes::watch_owners::Owners;
use crate::store::table_and_log::{Ledger, NO_HOST};
use canal_core::{
    BYPASS_MAX_DEFAULT, Change, HoldState, HostId, Key, Outcome, Snapshot, Table, Token, View,
};
use canal_protocol::{DeadlinePageFound, Failure};
use canal_sys::clock;
use canal_sys::deadline_page::{Deadline, Why, Writer};
use canal_text::duration::stated_ms;

/// The table, its log, and the changes on their way between them.
#[derive(Debug)]
pub(crate) struct Decide {
    ledger: Ledger,
    /// The changes that the log has not returned yet.
    pub in_flight: InFlight,
    /// `None` with the embedded journal.
    cluster: Option<Box<Cluster>>,
}

impl Decide {
    /// With a cluster, an engine keeps the log.
    pub(crate) fn new(ledger: Ledger, cluster: Option<Cluster>) -> Self {
        Self { ledger, in_flight: InFlight::default(), cluster: cluster.map(Box::new) }
    }

    pub(crate) fn table(&self) -> &Table {
        &self.ledger.table
    }

    /// The id of this host in the log.
    pub(crate) fn host(&self) -> HostId {
        self.ledger.host
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The ledger, to reserve room for a change, or to store what the table does not contain.
    pub(crate) fn ledger_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// Whether other hosts change the table, too. Then this host may not have read their latest
    /// changes, and can lose its holds.
    pub(crate) fn is_shared(&self) -> bool {
        self.cluster.is_some()
    }

    /// This host's part in a table that many hosts share, to show it.
    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_deref()
    }

    // Changes on their way to the table.

    /// Whether this host can propose changes.
    pub(crate) fn is_member(&self) -> bool {
        self.ledger.is_member()
    }

    /// Whether this host may propose a request now.
    pub(crate) fn may_ask(&self) -> bool {
        // The table recovers, or a process that lost its hold may still run.
        let must_not = |it: &Cluster| {
            self.ledger.table.recovery().is_some() || it.terminator.lost_processes.are_awaited()
        };
        self.is_member() && !self.cluster.as_deref().is_some_and(must_not)
    }

    /// Proposes a change to the log. Once it is applied, `then` determines the next step.
    pub(crate) fn propose(&mut self, change: Change, then: Completion) -> Ticket {
        let shared = self.cluster.as_mut().map(|cluster| (cluster, change.clone()));
        let ticket = self.in_flight.add(change, then);
        if let Some((cluster, change)) = shared {
            cluster.member.propose(ticket, change, now().unix);
        }
        ticket
    }

    /// Whether a change was proposed for the embedded journal and is not applied yet.
    pub(crate) fn has_proposed(&self) -> bool {
        self.cluster.is_none() && self.in_flight.len() > 0
    }

    /// Records everything that was applied since the last commit, in one write.
    ///
    /// # Errors
    /// The daemon must not report anything of this turn, and must end.
    pub(crate) fn commit(&mut self) -> io::Result<()> {
        debug_assert!(!self.has_proposed(), "a change was proposed and not followed");
        self.ledger.commit()
    }

    /// The next event of the log. The embedded journal returns what this host proposed to it.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        if let Some(cluster) = &mut self.cluster {
            return cluster.next_event();
        }
        let (ticket, change) = self.in_flight.first()?;
        if *change == VOID {
            // The table contains its result already, because it has none.
            return Some(Event::Absorbed { ticket, revision: self.ledger.table.revision() });
        }
        let (revision, entry) = self.ledger.next_entry(change.clone());
        Some(Event::Entry { revision, entry, ticket: Some(ticket) })
    }

    /// Takes a change that the log returned as an entry.
    pub(crate) fn take_entry(&mut self, ticket: Ticket) -> Option<Proposed> {
        let proposed = self.in_flight.take(ticket)?;
        if let Some(cluster) = &mut self.cluster {
            let took = clock::now().saturating_duration_since(proposed.since).as_micros();
            cluster.appends.add(&APPENDS, u64::try_from(took).unwrap_or(u64::MAX));
        }
        Some(proposed)
    }

    /// Replaces the table as a whole.
    ///
    /// # Errors
    /// The snapshot is damaged.
    pub(crate) fn replace_table(&mut self, snapshot: &Snapshot) -> anyhow::Result<()> {
        let table = Table::restore(snapshot);
        self.ledger.table = table.with_context(|| {
            format!("the engine's snapshot at revision {}", snapshot.globals.revision)
        })?;
        Ok(())
    }

    /// The outcome of a change of this view, if it is certain that the table would refuse it. Over
    /// an engine, only the log knows.
    pub(crate) fn refusal_of_view(&self, key: &Key, view: Option<View>) -> Option<Outcome> {
        if self.is_shared() { None } else { self.ledger.table.refusal_of_view(key, view) }
    }

    /// The change that gives the table the policy of the configuration. Over an engine, there is
    /// one only if no host has stated another policy.
    pub(crate) fn change_of_policy(&self, stated: Option<u32>) -> Option<Change> {
        let present = self.ledger.table.globals().bypass_max;
        let bypass_max = stated.unwrap_or(BYPASS_MAX_DEFAULT);
        let may_change = !self.is_shared() || self.is_member() && present == BYPASS_MAX_DEFAULT;
        (may_change && present != bypass_max).then_some(Change::Policy { bypass_max })
    }

    // The membership of this host. Without an engine, the host is always a member.

    /// Whether the engine has answered. If not, the answer will wake `context`.
    pub(crate) fn hears_engine(&mut self, context: &mut TaskContext<'_>) -> bool {
        self.cluster.as_mut().is_some_and(|cluster| cluster.poll(context))
    }

    /// Takes the engine's answers. [`Self::next_event`] returns the events that follow from them.
    pub(crate) fn hear_engine(&mut self) {
        let Some(cluster) = &mut self.cluster else { return };
        // The event loop polls again with its own waker before it sleeps.
        cluster.poll(&mut TaskContext::from_waker(Waker::noop()));
        cluster.member.tick(now());
    }

    /// Passes the calls of this turn to the engine. `is_needed`: something on this host depends on
    /// the batches of other hosts.
    pub(crate) fn ask_engine(&mut self, is_needed: bool) {
        let Some(cluster) = &mut self.cluster else { return };
        cluster.member.attend(now(), is_needed || !cluster.engine.lets_rest());
        for call in cluster.member.take_calls() {
            cluster.engine.call(call);
        }
        let Deadline { term_at, kill_at, .. } = cluster.member.deadline;
        cluster.engine.renew_by([term_at, kill_at]);
    }

    /// Publishes the time until which the holds are safe.
    pub(crate) fn keep_deadline(&self) {
        let Some(cluster) = &self.cluster else { return };
        cluster.page.iter().for_each(|page| page.publish(cluster.member.deadline));
    }

    /// Offers a snapshot of the table for new hosts.
    pub(crate) fn store_snapshot(&mut self, chain: Chain) {
        let Some(cluster) = &mut self.cluster else { return };
        cluster.member.store(chain, &self.ledger.table.snapshot());
    }

    /// Notes an event about the engine itself.
    ///
    /// # Errors
    /// Only a person can make the engine usable, and sees the error when the daemon ends.
    pub(crate) fn note_engine(&mut self, event: Event) -> anyhow::Result<()> {
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        match event {
            Event::Away(outage) if outage.refused => {
                cluster.end_if_seen(&outage)?;
                tracing::error!(hint = outage.hint, "cannot use the engine: {}", outage.why);
            }
            Event::Away(outage) => tracing::warn!("cannot reach the engine: {}", outage.why),
            Event::Back => tracing::info!("the engine is reachable again"),
            Event::Hindered(outage) => {
                let outage = cluster.dated(outage, &self.ledger.table);
                cluster.end_if_seen(&outage)?;
                tracing::error!(hint = outage.hint, "cannot join: {}", outage.why);
            }
            Event::Unhindered => tracing::info!("can join again"),
            _ => {}
        }
        Ok(())
    }

    /// Whether the table is up to date, so that clients may be served. If not, this host reads the
    /// log.
    pub(crate) fn is_present(&mut self) -> bool {
        let Some(cluster) = &mut self.cluster else { return true };
        let is_present = cluster.member.is_present();
        if !is_present {
            cluster.member.read_up(now());
        }
        is_present
    }

    /// Whether a grant may be sent now: the client has time left to start a command, no process of
    /// this host that lost its lock still runs, and no history can have been lost since the grant.
    pub(crate) fn may_grant(&self) -> bool {
        let Some(cluster) = &self.cluster else { return true };
        let in_time = clock::boottime_ms() < cluster.member.deadline.term_at;
        #[cfg(test)]
        let in_time = in_time || crate::sim::is_broken(crate::sim::Rule::GrantsAreInTime);
        in_time && cluster.member.is_current() && self.may_ask()
    }

    /// The failure for a client whose call cannot be served because this host is not a member.
    pub(crate) fn not_a_member(&self) -> Failure {
        let cluster = self.cluster.as_ref();
        cluster.map_or_else(not_yet, |cluster| cluster.not_a_member(&self.ledger))
    }

    /// Begins the membership under this id.
    ///
    /// # Errors
    /// There can be no deadline page. Without one, `canal run` could not end its command in time.
    pub(crate) fn begin_membership(&mut self, host: HostId, conns: &Conns) -> io::Result<()> {
        self.ledger.host = host;
        let Some(cluster) = self.cluster.as_deref_mut() else { return Ok(()) };
        cluster.let_in = true;
        let Cluster { name, member, mark, page, terminator, watcher, .. } = cluster;
        let new = Writer::create(host.0, name, &member.identity.label, member.deadline)?;
        // For later daemons.
        if let Some(Err(error)) = mark.as_mut().map(SharedMarker::set) {
            tracing::error!(%error, "cannot mark this membership for a later daemon without the \
                                     engine");
        }
        if let Some(Err(error)) = member.ttl_ms().map(|ttl_ms| terminator.record.set_ttl(ttl_ms)) {
            tracing::error!(%error, "cannot record the TTL for a later daemon");
        }
        watcher.begin(&mut terminator.record, page.insert(new), conns);
        Ok(())
    }

    /// Records the processes of the holds that this membership takes over from an earlier
    /// incarnation, in case the record of earlier daemons was lost. A process that is not in that
    /// record probably did not receive its grant.
    pub(crate) fn take_over(&mut self, own: &[HoldState]) {
        let Some(cluster) = &mut self.cluster else { return };
        for hold in own {
            let Some(holder) = Holder::of(hold, cluster.member.mark()) else { continue };
            let holder = Holder { taken_over: !cluster.was_told(hold.token), ..holder };
            if let Err(error) = cluster.terminator.record.tell(hold.token, holder) {
                tracing::error!(%error, "cannot record an owner");
            }
        }
    }

    /// Whether something here depends on the table.
    pub(crate) fn is_used(&self) -> bool {
        let table = &self.ledger.table;
        match self.cluster {
            None => table.holds().len() > 0 || table.waiters().len() > 0,
            Some(_) => table.frames_of_host(self.ledger.host).next().is_some(),
        }
    }

    /// Ends the membership when the daemon ends, if no frame depends on it, so that the other hosts
    /// need not wait until its TTL is over. Returns whether the withdrawal is under way.
    pub(crate) fn leave_unused(&mut self) -> bool {
        let is_used = self.is_used() || self.in_flight.len() > 0;
        self.cluster.as_mut().is_some_and(|cluster| {
            !is_used && cluster.terminator.record.each().is_empty() && cluster.member.leave(now())
        })
    }

    /// Explains that the table recovers, if it does.
    pub(crate) fn recovery_words(&self) -> Option<String> {
        self.cluster.as_ref()?.recovery_words(&self.ledger.table)
    }

    /// Follows the recovery of the table, which may have begun or ended.
    pub(crate) fn follow_recovery(&mut self) {
        let (Some(cluster), table) = (&mut self.cluster, &self.ledger.table) else { return };
        cluster.member.recovers(table.recovery(), table.globals().longest_ttl_ms);
    }

    /// When the daemon needs a turn for the engine or its commands, in milliseconds of
    /// CLOCK_BOOTTIME.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let cluster = self.cluster.as_ref()?;
        let (Deadline { term_at, kill_at, .. }, now) =
            (cluster.member.deadline, clock::boottime_ms());
        let stops = match self.is_member() {
            true => [Some(term_at), Some(kill_at)],
            false => [cluster.unclaimed_until(), None],
        };
        let stops = stops.into_iter().flatten().filter(|at| *at > now);
        stops.chain(cluster.terminator.next_due(now)).chain(cluster.member.next_due()).min()
    }

    // The commands of this host that end if their lock is lost.

    /// Schedules the end of these commands, and ends those that are due. Returns whether requests
    /// had to wait for their end and can be proposed now.
    pub(crate) fn end_commands(&mut self, which: ToEnd<'_>, owners: &Owners, now: u64) -> bool {
        let is_member = self.ledger.is_member();
        let Some(cluster) = &mut self.cluster else { return false };
        let is_unclaimed = cluster.unclaimed_until().is_some_and(|until| now >= until);
        let Cluster { member, terminator, page, .. } = &mut **cluster;
        let watched = Watched { table: &self.ledger.table, owners };
        let Deadline { term_at, kill_at, .. } = member.deadline;
        match which {
            // The end of all commands, unless the engine answers before `kill_at`.
            ToEnd::Due if is_member && now >= term_at => {
                let (record, lost_processes) = (&terminator.record, &mut terminator.lost_processes);
                lost_processes.spare(|token| record.each().contains_key(&token));
                for (token, told) in record.each() {
                    lost_processes.endanger((*token, *told), || record.trace_of(told), kill_at);
                }
            }
            ToEnd::Due => {
                terminator.lost_processes.spare(|_| false);
                if !is_member && is_unclaimed {
                    terminator.schedule_all(watched, now, Why::Away);
                }
            }
            ToEnd::All => {
                // The processes of an earlier daemon have had their time to end. Those that are
                // already scheduled keep their time.
                terminator.schedule_all(watched, now, Why::Gone);
                terminator.awaited = true;
            }
            ToEnd::Unknown => terminator.schedule_unknown(member, watched, now),
            ToEnd::Lost(why) => {
                // From now on, this host holds and asks for nothing.
                self.ledger.host = NO_HOST;
                // While no other host can have declared this one gone, no other host has our holds.
                let (why, kill_at) = match why {
                    LostWhy::NotRenewed => (Why::Away, kill_at),
                    LostWhy::Fenced { .. } | LostWhy::Gone { .. } => (Why::Gone, now),
                    LostWhy::Rewritten => (Why::Rewritten, now),
                    LostWhy::Differs => (Why::Other, now),
                };
                terminator.page = page.take().map(|page| (page, why, kill_at));
                terminator.schedule_all(watched, kill_at, why);
            }
        }
        let was_awaited = terminator.lost_processes.are_awaited();
        terminator.end_due(watched, now);
        if terminator.lost_processes.are_awaited() {
            return false;
        }
        if std::mem::take(&mut terminator.awaited) {
            member.cleared(member_and_engine::now());
        }
        was_awaited && self.ledger.is_member()
    }

    /// Records a grant before its client receives it. A later daemon then knows the token even
    /// after a reboot, and can end the process if this host loses the hold.
    ///
    /// # Errors
    /// The grant is not recorded, so the client must not receive it.
    pub(crate) fn record_grant(&mut self, token: Token) -> io::Result<()> {
        let hold = self.ledger.table.hold(token);
        let Some((cluster, hold)) = self.cluster.as_mut().zip(hold) else { return Ok(()) };
        cluster.tokens.tell(token, cluster.member.memory.epoch)?;
        cluster.member.tell(token);
        let Some(told) = Holder::of(hold, cluster.member.mark()) else { return Ok(()) };
        // A client receives the token again.
        cluster.terminator.lost.remove(&token);
        cluster.terminator.record.tell(token, told)
    }

    /// Handles a hold that has ended in the table. Until this host is a member, it may be reading
    /// another history of the log, in which the token belongs to another process.
    pub(crate) fn hold_ended(&mut self, token: Token) {
        let is_over = self.ledger.is_member() && self.ledger.table.hold(token).is_none();
        let Some(cluster) = self.cluster.as_mut().filter(|_| is_over) else { return };
        let Terminator { record, lost_processes, .. } = &mut cluster.terminator;
        // A process that lost the token in an earlier membership did not release anything.
        if !lost_processes.has(token) {
            record.end(token);
            lost_processes.spare(|other| other != token);
        }
    }

    /// The recorded tokens that the table no longer has.
    pub(crate) fn ended_tokens(&self) -> Vec<Token> {
        let recorded = self.cluster.iter().flat_map(|it| it.terminator.record.each().keys());
        recorded.copied().filter(|token| self.ledger.table.hold(*token).is_none()).collect()
    }

    /// Why this hold was lost, if its process was ended for that reason.
    pub(crate) fn why_lost(&self, token: Token) -> Option<Why> {
        self.cluster.as_ref()?.terminator.lost.get(&token).copied()
    }

    /// Adds the deadline page to the descriptors of a grant, if there is one.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub(crate) fn add_page(&self, fds: &mut Vec<OwnedFd>) -> io::Result<Option<DeadlinePageFound>> {
        let page = self.cluster.as_ref().and_then(|cluster| cluster.page.as_ref());
        let Some(page) = page else { return Ok(None) };
        let deadline_fd = u32::try_from(fds.len()).unwrap_or(u32::MAX);
        for fd in page.reader.descriptors() {
            fds.push(fd.try_clone_to_owned()?);
        }
        let liveness_fd = deadline_fd.saturating_add(1);
        Ok(Some(DeadlinePageFound { deadline_fd, liveness_fd }))
    }

    /// Creates removed files again.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn restore_files(&mut self) -> io::Result<()> {
        // This also records the whole table if an earlier attempt to record it failed.
        self.ledger.recreate()?;
        self.cluster.as_mut().map_or(Ok(()), |cluster| cluster.terminator.record.restore())
    }

    /// When to start another watcher.
    pub(crate) fn watcher_due(&self) -> Option<Instant> {
        self.cluster.as_ref()?.watcher.due
    }

    /// Starts another watcher if that is due.
    pub(crate) fn look_after_watcher(&mut self, conns: &mut Conns, now: Instant) {
        let Some(cluster) = &mut self.cluster else { return };
        cluster.watcher.look_after(cluster.page.as_ref(), conns, now);
    }

    /// Tells the watcher that the daemon ends on purpose.
    pub(crate) fn say_farewell(&self) {
        self.cluster.iter().for_each(|cluster| cluster.watcher.say_farewell());
    }

    /// Notes that this daemon sends no further tokens.
    pub(crate) fn close_tokens(&mut self) {
        let Some(cluster) = &mut self.cluster else { return };
        if let Err(error) = cluster.tokens.close() {
            tracing::warn!(%error, "the next daemon will not know exactly which tokens were \
                                    granted");
        }
    }

    // The engine in reports.

    /// The engine's settings in force, without a password.
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        let Some(cluster) = &self.cluster else { return Vec::new() };
        vec![
            ("engine.url", cluster.name.clone()),
            ("engine.host", cluster.member.identity.label.clone()),
            ("engine.ttl", stated_ms(cluster.member.settings.ttl_ms)),
        ]
    }
}
