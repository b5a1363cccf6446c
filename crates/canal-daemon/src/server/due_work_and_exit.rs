//! The work of a turn that is due at a time: when the daemon wakes for it, and the work itself.
//! Also stops the daemon: for a client, or because it has been idle for long enough.

use std::io;
use std::time::{Duration, Instant};

use crate::net::all_connections::Source;
use crate::net::call_state::{CallState, Subject};
use crate::processes::watch_owners::VERIFIED_EVERY;
use crate::runtime_dir::claim::{FILES_CHECKED_EVERY, RESTORE_AFTER, RESTORE_AGAIN_AFTER};
use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step};
use crate::server::process_ends_and_stops::PROCESSES_EVERY;
use crate::timers::is_due;
use canal_protocol::Stopping;
use canal_sys::clock;
use canal_sys::peer::Credentials;
use canal_text::duration::stated;

impl Server {
    /// How long the daemon may sleep if no event arrives and its boottime timer does not go off.
    pub(crate) fn time_to_sleep(&self) -> Option<Duration> {
        let deferred = self.conns.waits(Subject::Death).filter_map(|(_, state)| {
            if let CallState::Deferred(it) = state { it.deferred_until } else { None }
        });
        let (due, next_deferred) = (&self.due, deferred.min());
        let times = [
            due.come_back,
            due.processes,
            due.check_ahead,
            due.closing,
            due.node_settled,
            due.progress,
            due.watch,
            due.leaders,
            self.reports.due,
            due.home,
            due.verify,
            due.idle,
            self.jobservers.due,
            self.observe.due(),
            self.decide.watcher_due(),
            self.effective.readings.due(),
            next_deferred,
            self.runtime_dir.listener.pauses_until,
        ];
        times.into_iter().flatten().min().map(|at| at.saturating_duration_since(clock::now()))
    }

    /// Sets the timer for work that is also due while the machine is suspended: the ends of waits
    /// and leases, and the deadlines of the engine.
    pub(crate) fn set_alarm(&mut self) -> io::Result<()> {
        if self.conns.reported.remove(&Source::BOOTTIME_TIMER) {
            self.timer.set_for = None;
        }
        let log_due = self.conns.log_waits().map(|(_, wait)| wait.due()).min();
        let waiters = self.waiters.next_end();
        let ends = [waiters, self.leases.next_end(), log_due, self.decide.next_due()];
        self.timer.set(ends.into_iter().flatten().min())
    }

    /// Does the work that is due.
    pub(super) fn on_time(&mut self, now: Instant) -> anyhow::Result<()> {
        self.end_waits()?;
        self.look_at_pending();
        if is_due(&mut self.due.come_back, now) {
            self.give_up_the_lost(now);
        }
        if is_due(&mut self.due.processes, now) {
            self.look_at_stopped(now);
            let unsure = self.children.unsure.clone();
            unsure.into_iter().for_each(|token| self.end_of_writers(token));
        }
        if is_due(&mut self.due.check_ahead, now) {
            self.check_ahead_of_waiters(now);
        }
        if is_due(&mut self.due.node_settled, now) {
            self.settle_node();
        }
        self.look_after_home(now);
        self.decide.look_after_watcher(&mut self.conns, now);
        Ok(())
    }

    /// Schedules the next work at the end of a turn, because no event may start another turn. Stops
    /// the daemon if it has been idle for the configured time.
    pub(crate) fn look_ahead(&mut self, now: Instant) {
        if self.due.come_back.is_some()
            || !self.waiters.stopped.is_empty()
            || !self.children.unsure.is_empty()
        {
            self.due.processes.get_or_insert(now + PROCESSES_EVERY);
        }
        self.due.closing = self.conns.close_slow(now);
        self.reports.look_ahead(&self.conns, now);
        let Some(limit) = self.effective.idle_exit(self.options.idle_exit_s) else { return };
        if self.conns.len() > 0 || self.decide.is_used() || self.observe.hooks.are_busy() {
            self.due.idle = None;
        } else if is_due(&mut self.due.idle, now) {
            tracing::info!("idle for {}; the daemon is exiting", stated(limit));
            self.stopping = true;
        } else {
            self.due.idle.get_or_insert(now + limit);
        }
    }

    pub(crate) fn stop(&mut self, caller: &Caller) -> Result {
        let Credentials { uid, pid, .. } = caller.peer;
        self.check_operator(uid, "stop this daemon")?;
        tracing::info!(uid, pid, "stopping for a client");
        self.stopping = true;
        Ok(Step::reply(&Stopping { pid: self.about.pid }))
    }

    /// Watches the daemon's files, and restores removed files from memory.
    fn look_after_home(&mut self, now: Instant) {
        if self.conns.reported.remove(&Source::RUNTIME_DIR) {
            self.due.home = Some(now + RESTORE_AFTER);
        }
        if is_due(&mut self.due.home, now) {
            match self.restore_home() {
                Ok(()) => self.runtime_dir.restore_failed = false,
                Err(error) => {
                    if !std::mem::replace(&mut self.runtime_dir.restore_failed, true) {
                        tracing::warn!("cannot restore the files yet: {error:#}");
                    }
                    self.due.home = Some(now + RESTORE_AGAIN_AFTER);
                }
            }
        }
        if self.runtime_dir.watch().is_none() {
            self.due.home.get_or_insert(now + FILES_CHECKED_EVERY);
        }
        if is_due(&mut self.due.verify, now) {
            self.verify_again();
        }
        if !self.owners.unverified.is_empty() {
            self.due.verify.get_or_insert(now + VERIFIED_EVERY);
        }
    }

    fn restore_home(&mut self) -> anyhow::Result<()> {
        let vanished = self.decide.ledger().journal().is_some_and(|it| it.journal.vanished());
        let is_whole = !self.runtime_dir.is_damaged() && !vanished;
        if !self.runtime_dir.restore_failed {
            if is_whole {
                return Ok(());
            }
            tracing::warn!("another process removed files of this daemon; restoring them");
        }
        self.runtime_dir.restore()?;
        self.decide.restore_files()?;
        self.runtime_dir.reopen()?;
        // The listener is registered already unless it was created again.
        let _ = self.conns.await_source(Source::LISTENER, &self.runtime_dir.listener);
        Ok(())
    }
}
