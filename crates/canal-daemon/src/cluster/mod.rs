//! Everything that only a daemon with an engine needs: this host is a member of a table that hosts
//! share.
//!
//! [`Cluster`] owns all of it. A daemon with the embedded journal has none; the rest of the daemon
//! checks only this to learn whether there is an engine. `server/membership.rs` uses it.
//!
//! Invariant: no command outlives the time at which another host may be granted what the command
//! holds.

pub(super) mod end_commands;
pub(super) mod engine;
pub(super) mod engine_driver;
pub(super) mod engine_mark;
pub(super) mod engine_status;
pub(super) mod health;
pub(super) mod join;
pub(super) mod not_a_member;
pub(super) mod recovering;
pub(super) mod sent_tokens;
pub(super) mod terminator;
pub(super) mod watcher;

use std::io;
use std::os::fd::OwnedFd;
use std::task::Context as TaskContext;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::cluster::engine::Chosen;
use crate::cluster::engine_driver::EngineDriver;
use crate::cluster::engine_mark::EngineMark;
use crate::cluster::engine_status::{EngineStatus, OngoingOutage};
use crate::cluster::sent_tokens::SentTokens;
use crate::cluster::terminator::Terminator;
use crate::cluster::watcher::Watcher;
use crate::config::Config;
#[cfg(test)]
use crate::host::Mark;
use crate::host::{Deadlines, Event, Ticket};
use crate::options::Options;
use crate::processes::holder::Holder;
use crate::processes::holder_record::HolderRecord;
use canal_core::{Change, HoldState, Snapshot, Table, Token};
use canal_log::engine::Outage;
use canal_protocol::DeadlinePageFound;
use canal_sys::clock;
use canal_sys::deadline::{Deadline, Why, Writer};
use canal_sys::process::Origin;
use canal_text::duration::stated_ms;

/// This host's part in a table that hosts share.
#[derive(Debug)]
pub(crate) struct Cluster {
    driver: EngineDriver,
    status: EngineStatus,
    /// The processes of this host that received a grant.
    holder_record: HolderRecord,
    /// The tokens that clients of this host received.
    tokens: SentTokens,
    terminator: Terminator,
    /// The page with the time until which holds are safe. `None` while this host is not a member.
    page: Option<Writer>,
    /// The deadlines on the page.
    published: Deadlines,
    /// The mark for later daemons that this place uses an engine. `None` in a test.
    mark: Option<EngineMark>,
    /// The watcher process, which outlives this daemon.
    watcher: Watcher,
}

impl Cluster {
    /// Reads the files of earlier daemons of this place, and prepares those of this daemon.
    ///
    /// # Errors
    /// A file cannot be read or written, or the record names processes of another namespace.
    pub(crate) fn open(
        options: &Options,
        config: &Config,
        chosen: &Chosen,
        driver: EngineDriver,
    ) -> anyhow::Result<Self> {
        let place = &options.place;
        let origin = Origin::read()?;
        let (mark, boots) = EngineMark::prepare(place, chosen, &origin.boot_id)
            .context("cannot record the engine")?;
        let holder_record = HolderRecord::open(&place.dir, origin, options.discard_journal)
            .with_context(|| format!("the record of owners in {}", place.dir.display()))?;
        let tokens = SentTokens::open(place, &chosen.name)
            .context(place.dir.display().to_string())
            .context("cannot read which tokens were granted here")?;
        let status = EngineStatus::new(chosen, config, options.on_demand);
        let mut cluster = Self::new(driver, status, holder_record, tokens);
        cluster.driver.remember_boots(boots);
        cluster.mark = Some(mark);
        cluster.watcher = Watcher::of(options);
        Ok(cluster)
    }

    /// A cluster without a watcher, which leaves no mark for later daemons.
    pub(crate) fn new(
        mut driver: EngineDriver,
        status: EngineStatus,
        holder_record: HolderRecord,
        tokens: SentTokens,
    ) -> Self {
        driver.remember(sent_tokens::memory_of(&tokens, &holder_record));
        driver.start(holder_record.dir_number());
        Self {
            driver,
            status,
            holder_record,
            tokens,
            terminator: Terminator::default(),
            page: None,
            published: Deadlines::default(),
            mark: None,
            watcher: Watcher::default(),
        }
    }

    /// Whether the engine has answered. If not, `context` is woken when it does.
    pub(crate) fn has_answers(&mut self, context: &mut TaskContext<'_>) -> bool {
        self.driver.poll(context).is_ready()
    }

    /// Begins a turn: takes the engine's answers.
    pub(crate) fn begin_turn(&mut self) {
        self.driver.begin_turn();
    }

    /// The next event of this host's membership.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.driver.next_event()
    }

    /// Passes the calls of this turn to the engine. `is_needed`: something on this host depends on
    /// the batches of other hosts.
    pub(crate) fn ask_engine(&mut self, is_needed: bool) {
        self.driver.end_turn(is_needed);
    }

    /// Whether clients may be served now. If not, this host reads the log first.
    pub(crate) fn is_present(&mut self) -> bool {
        let is_present = self.driver.is_present();
        if !is_present {
            self.driver.read_up();
        }
        is_present
    }

    /// How many reads for clients have ended, and whether one is pending.
    #[cfg(test)]
    pub(crate) fn reads(&self) -> (u64, bool) {
        self.driver.reads()
    }

    /// Proposes a change for the log.
    pub(crate) fn propose(&mut self, change: Change) -> Ticket {
        self.driver.propose(change)
    }

    /// Offers a snapshot of the table, as it is after the entries carried out so far, for new
    /// hosts.
    pub(crate) fn store(&mut self, snapshot: &Snapshot) {
        self.driver.store(snapshot);
    }

    /// Reports how far the table has recovered.
    pub(crate) fn recovers(&mut self, table: &Table) {
        self.driver.recovers(table);
    }

    /// Notes that the engine is unreachable, or refuses this host.
    pub(crate) fn note_away(&mut self, outage: Outage) {
        let before = self.status.away.as_ref();
        self.status.away = Some(OngoingOutage::new(outage, before));
    }

    /// Notes that the engine can be reached again.
    pub(crate) fn note_back(&mut self) {
        self.status.note_back();
    }

    /// Notes that the engine stores nothing although it answers, or stores changes again.
    pub(crate) fn note_full(&mut self, full: Option<Outage>) {
        let before = self.status.full.take();
        self.status.full = full.map(|outage| OngoingOutage::new(outage, before.as_ref()));
    }

    /// Notes that this host cannot take part, although the engine can be reached.
    pub(crate) fn note_hindered(&mut self, outage: Outage) {
        let before = self.status.unable.as_ref();
        self.status.unable = Some(OngoingOutage::new(outage, before));
    }

    /// Notes that this host can take part again.
    pub(crate) fn note_unhindered(&mut self) {
        self.status.unable = None;
    }

    /// Records how long a change took to come back from the engine.
    pub(crate) fn count_append(&mut self, took: Duration) {
        self.status.count_append(took);
    }

    /// The tokens in the record of processes that received a grant.
    pub(crate) fn recorded_tokens(&self) -> Vec<Token> {
        self.holder_record.tokens()
    }

    /// How often a waiter may be overtaken, by the configuration.
    pub(crate) fn bypass_max(&self) -> Option<u32> {
        self.status.bypass_max
    }

    /// Whether this host must not make requests now: the table recovers, or a process that lost its
    /// hold may still run.
    pub(crate) fn must_not_ask(&self, table: &Table) -> bool {
        table.recovery().is_some() || self.terminator.are_awaited()
    }

    /// When the daemon needs a turn for the engine or its commands, in milliseconds of
    /// CLOCK_BOOTTIME.
    pub(crate) fn next_due(&self, is_member: bool) -> Option<u64> {
        let times = [self.driver.next_due(), self.next_stop(is_member)];
        times.into_iter().flatten().min()
    }

    /// Adds the deadline page to the descriptors of a grant, if there is one.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub(crate) fn add_page(&self, fds: &mut Vec<OwnedFd>) -> io::Result<Option<DeadlinePageFound>> {
        let Some(writer) = &self.page else { return Ok(None) };
        let index = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let found =
            DeadlinePageFound { deadline_fd: index(fds.len()), liveness_fd: index(fds.len() + 1) };
        fds.push(writer.page().try_clone_to_owned()?);
        fds.push(writer.line().try_clone_to_owned()?);
        Ok(Some(found))
    }

    /// Publishes the time until which the holds are safe.
    pub(crate) fn keep_deadline(&mut self) {
        let Some(writer) = &self.page else { return };
        let deadlines = self.driver.deadlines();
        if self.published != deadlines {
            writer.publish(self.published_deadline());
            self.published = deadlines;
        }
    }

    fn published_deadline(&self) -> Deadline {
        let deadlines = self.driver.deadlines();
        Deadline {
            reached_at: self.driver.health().renewed_ms.unwrap_or(0),
            term_at: deadlines.term_at,
            kill_at: deadlines.kill_at,
        }
    }

    /// Records a grant before its client receives it. A later daemon then knows the token even
    /// after a reboot, and can end the process if this host loses the hold.
    ///
    /// # Errors
    /// The grant is not recorded, so the client must not receive it.
    pub(crate) fn record_grant(&mut self, hold: &HoldState) -> io::Result<()> {
        let token = hold.token;
        self.tokens.tell(token, self.driver.epoch())?;
        self.driver.tell(token);
        let Some(told) = Holder::of(hold, self.driver.mark()) else { return Ok(()) };
        self.terminator.forget_lost(token);
        self.holder_record.tell(token, told)
    }

    /// Notes that this daemon sends no further tokens.
    pub(crate) fn close_tokens(&mut self) {
        if let Err(error) = self.tokens.close() {
            tracing::warn!(%error, "the next daemon will not know exactly which tokens were \
                                    granted");
        }
    }

    /// The engine's settings in force, without a password.
    pub(crate) fn settings(&self) -> [(&'static str, String); 3] {
        let EngineStatus { name, label, ttl_ms, .. } = &self.status;
        [
            ("engine.url", name.clone()),
            ("engine.host", label.clone()),
            ("engine.ttl", stated_ms(*ttl_ms)),
        ]
    }

    /// Sets how often a waiter may be overtaken, when the configuration has been read again.
    pub(crate) fn set_bypass_max(&mut self, bypass_max: Option<u32>) {
        self.status.bypass_max = bypass_max;
    }

    /// Why this hold was lost, if its process was ended for that reason.
    pub(crate) fn why_lost(&self, token: Token) -> Option<Why> {
        self.terminator.why_lost(token)
    }

    /// Whether the client of a hold certainly received its grant: a daemon of this host records
    /// that before it sends the grant.
    pub(crate) fn was_told(&self, token: Token) -> bool {
        self.holder_record.get(token).is_some_and(|holder| !holder.taken_over)
    }

    /// How far this host has read the log.
    #[cfg(test)]
    pub(crate) fn read_to(&self) -> Option<Mark> {
        self.driver.mark()
    }

    /// Tells the watcher that the daemon ends on purpose.
    pub(crate) fn say_farewell(&self) {
        self.watcher.say_farewell();
    }

    /// Creates the record of holders again if it was removed.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn restore_record(&mut self) -> io::Result<()> {
        self.holder_record.restore()
    }

    /// When to start another watcher.
    pub(crate) fn watcher_due(&self) -> Option<Instant> {
        self.watcher.due()
    }

    /// Whether the daemon may send a grant now: the client has time left to start a command, no
    /// process of this host that lost its lock still runs, and no history can have been lost since
    /// the grant.
    pub(crate) fn may_grant(&self, table: &Table) -> bool {
        let in_time = clock::boottime_ms() < self.driver.deadlines().term_at;
        #[cfg(test)]
        let in_time = in_time || crate::sim::is_broken(crate::sim::Rule::GrantsAreInTime);
        in_time && self.driver.is_current() && !self.must_not_ask(table)
    }
}
