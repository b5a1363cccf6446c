//! Observes decisions: records them, counts them, and reports them to the configured hooks.
//!
//! Invariants: no decision depends on this. Hooks get their events only after the answers of a turn
//! are written.

use std::collections::BTreeSet;
use std::task::Waker;
use std::time::Instant;

use crate::cluster::journal_or_engine::Decide;
use crate::config::hooks::{HookSettings, On};
use crate::history::recorder::History;
use crate::hooks::active_hooks::{Hooks, Lasting, lasting};
use crate::hooks::event::{Event, HOLDERS_MAX, HolderFacts};
use crate::metrics::counters::Snapshot;
use crate::metrics::exporter::Exporter;
use crate::store::table_and_log::Ledger;
use crate::timers::is_due;
use crate::view::visible_table::Shown;
use crate::waiters::Open;
use crate::wording::{pid_of, time};
use canal_core::OwnSlots;
use canal_history::Ending;
use canal_sys::clock;

/// What follows from decisions for records, hooks and metrics.
#[derive(Debug, Default)]
pub(crate) struct Observe {
    /// The records of requests that have ended.
    pub history: History,
    /// The programs that run on events, such as a long wait or the loss of a lease.
    pub hooks: Hooks,
    /// Serves metrics on a socket, if the configuration names one.
    exporter: Option<Exporter>,
}

impl Observe {
    pub(crate) fn new(mut history: History, hooks: Hooks, exporter: Option<Exporter>) -> Self {
        history.tell_hooks(hooks.are_told_of_ends());
        Self { history, hooks, exporter }
    }

    /// Takes over the hooks of the configuration in force.
    pub(crate) fn reconfigure(&mut self, hooks: &[HookSettings]) {
        self.hooks.follow(hooks);
        self.history.tell_hooks(self.hooks.are_told_of_ends());
    }

    /// Follows a table that replaces the previous one, or another part of the same table.
    pub(crate) fn follow(&mut self, ledger: &Ledger) {
        self.history.follow(&ledger.table, ledger.host);
        self.hooks.look_soon();
    }

    /// Passes on what happened in a turn. Called after the answers of the turn are written.
    pub(crate) fn end_turn(&mut self, shown: &Shown<'_>) {
        let now = clock::now();
        if !self.hooks.is_empty() {
            self.tell_hooks(shown, now);
        }
        self.history.hand_over();
        self.history.note_open(now);
    }

    /// Gives the current figures to the thread that offers metrics, if it asked for them.
    pub(crate) fn give_metrics(&mut self, decide: &mut Decide, connections: usize) {
        if self.exporter.as_ref().is_some_and(Exporter::is_asked) && decide.is_present() {
            let snapshot = self.snapshot(decide, connections);
            if let Some(exporter) = &self.exporter {
                exporter.give(snapshot);
            }
        }
    }

    /// The current figures.
    pub(crate) fn snapshot(&mut self, decide: &Decide, connections: usize) -> Snapshot {
        let counters = self.history.counters();
        let figures = Snapshot::of(decide.table(), counters, clock::unix_ms());
        Snapshot {
            connections: connections as u64,
            journal_bytes: decide.ledger().journal().map(|it| it.journal.bytes()),
            history_bytes: self.history.queue.bytes(),
            history_dropped: self.history.queue.dropped(),
            engine: decide.cluster().map(|cluster| cluster.figures(decide.is_member())),
            ..figures
        }
    }

    /// The notes that name programs and addresses, which only operators may see.
    pub(crate) fn notes_for_operators(&self) -> impl Iterator<Item = String> + use<> {
        let of_exporter = self.exporter.as_ref().and_then(Exporter::note);
        self.hooks.notes().into_iter().chain(of_exporter)
    }

    /// When something has to be passed on even if nothing happens.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.hooks.due.into_iter().chain(self.history.note_due).min()
    }

    /// Sets the waker that wakes the daemon when a thread has or wants something.
    pub(crate) fn wake_by(&self, waker: &Waker) {
        self.history.queue.wake_by(waker.clone());
        self.exporter.iter().for_each(|exporter| exporter.wake_by(waker.clone()));
    }

    /// Ends the programs and the threads. Called when the daemon ends.
    pub(crate) fn close(&mut self) {
        self.hooks.close();
        self.history.close();
        self.exporter = None;
    }

    fn tell_hooks(&mut self, shown: &Shown<'_>, now: Instant) {
        self.history.take_notable().iter().for_each(|ended| self.hooks.tell_end(ended));
        let table = shown.table;
        if is_due(&mut self.hooks.due, now) {
            let now_ms = clock::unix_ms();
            let lasting = lasting(table, shown.here);
            let next = self.hooks.tell_lasting(table, &lasting, now_ms, |one| match one.on {
                On::LongWait => shown.long_wait(one, now_ms),
                _ => {
                    let hold = table.hold_tagged(one.asked.tag)?;
                    let ended = Open::of_hold(table, hold).ended_at(now_ms, Ending::Ended);
                    Some(Event::of(one.on, ended))
                }
            });
            if let Some(next) = next {
                self.hooks.look_at(next, now_ms, now);
            }
        }
        self.hooks.look_ahead(table.waiters().len() > 0 || table.holds().len() > 0, now);
    }
}

impl Shown<'_> {
    /// The event for a long wait.
    fn long_wait(&self, one: Lasting<'_>, now_ms: u64) -> Option<Event> {
        let waiter = self.table.waiter(self.table.tagged(one.asked.tag)?)?;
        let asked = &waiter.request;
        let items = 0..asked.items.len();
        let tokens = items.flat_map(|item| {
            self.table.blocking_holds(asked, item, OwnSlots::LeftOut, HOLDERS_MAX)
        });
        let mut seen = BTreeSet::new();
        let holds = tokens.filter(|token| seen.insert(*token));
        let holds = holds.filter_map(|token| self.table.hold(token)).take(HOLDERS_MAX);
        let holders = holds.map(|hold| HolderFacts {
            uid: hold.asked.uid,
            pid: pid_of(&hold.asked.owner),
            command: Some(hold.asked.command.0.clone()),
            since: time(hold.since),
            token: hold.token.0,
        });
        Some(Event {
            on: one.on,
            ended: Open::of_waiter(self.table, waiter).ended_at(now_ms, Ending::Ended),
            reason: self.why(waiter.id).map(|(_, _, clause)| clause),
            holders: holders.collect(),
        })
    }
}
