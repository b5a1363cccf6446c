//! Ends commands in time, before other hosts can be granted what the commands hold.
//!
//! The supervisor (`canal run`) reads the same deadlines on the deadline page, and ends its command
//! with all that the command started. The daemon's signals are the first line of defence, and the
//! only line for a process without a supervisor.
//!
//! Invariant: this host asks for no grant while a process lives that has to be killed because an
//! earlier incarnation lost its hold.

use crate::core::{HostId, OnLost, Owner, ProcessId, Token};
use crate::daemon::processes::descendants::{self, Trace};
use crate::daemon::processes::holder::Holder;
use crate::daemon::processes::lost_processes::Stage;
use crate::daemon::processes::owners::find;
use crate::daemon::server::Server;
use crate::daemon::store::ledger::NO_HOST;
use crate::host::LostWhy;
use crate::sys::clock;
use crate::sys::deadline::{Deadline, Why};
use crate::sys::pidfd::{Pidfd, is_gone};
use crate::sys::process::Found;

impl Server {
    /// Signals the commands whose deadline has passed. This is the first step of a turn, because
    /// the daemon itself may have been stopped for any length of time.
    pub(crate) fn stop_in_time(&mut self) {
        let Some(shared) = self.ledger.engine() else { return };
        let (deadlines, now) = (shared.deadlines(), clock::boottime_ms());
        if self.ledger.is_member() {
            if now < deadlines.term_at {
                self.terminator.signalled.clear();
                self.terminator.unsignalled.clear();
            } else {
                let stage = if now < deadlines.kill_at { Stage::Asked } else { Stage::Killed };
                self.stop_all(stage);
            }
        } else if self.unclaimed_until().is_some_and(|until| now >= until) {
            self.doom_all(now, Why::Away);
        }
        self.end_doomed(now);
    }

    /// When the next command must be signalled, in milliseconds of CLOCK_BOOTTIME.
    pub(crate) fn next_stop(&self, now: u64) -> Option<u64> {
        let shared = self.ledger.engine()?;
        let deadlines = shared.deadlines();
        let times = match self.ledger.is_member() {
            true => [Some(deadlines.term_at), Some(deadlines.kill_at)],
            false => [self.unclaimed_until(), None],
        };
        let times = times.into_iter().flatten().filter(|at| *at > now);
        times.chain(self.terminator.next_due(now)).min()
    }

    /// The latest time until which the previous daemon may have renewed the holds in the record, if
    /// this daemon has not taken them over. A watcher knows the deadline more exactly, but the
    /// watcher may have been killed, too.
    fn unclaimed_until(&self) -> Option<u64> {
        let is_unclaimed = !self.engine_status.let_in && !self.holder_record.is_empty();
        is_unclaimed.then(|| self.engine_status.began_ms.saturating_add(self.engine_status.ttl_ms))
    }

    fn stop_all(&mut self, stage: Stage) {
        if stage == Stage::Killed {
            self.kill_descendants();
        }
        for (token, told) in self.holder_record.iter().collect::<Vec<_>>() {
            let Holder { process, on_lost, .. } = told;
            let Some(stage) = stage.allowed(on_lost) else { continue };
            if self.terminator.is_lost(token)
                || self.terminator.signalled.get(&process) >= Some(&stage)
            {
                continue;
            }
            match self.signal(token, process, stage) {
                Ok(()) => {
                    self.terminator.signalled.insert(process, stage);
                    self.terminator.unsignalled.remove(&process);
                }
                Err(error) => {
                    if self.terminator.unsignalled.insert(process) {
                        let pid = process.pid;
                        tracing::error!(pid, token = token.0, %error, "it cannot be stopped yet");
                    }
                }
            }
        }
    }

    /// Kills the processes that run under the holds whose owners are about to be killed. Processes
    /// that are started meanwhile are killed when this host has given up the holds.
    fn kill_descendants(&self) {
        let is_due = |token, told: &Holder| {
            let done = self.terminator.signalled.get(&told.process) >= Some(&Stage::Killed);
            told.on_lost == OnLost::Kill && !done && !self.terminator.is_lost(token)
        };
        let due = self.holder_record.iter().filter(|(token, told)| is_due(*token, told));
        let traces: Vec<Trace> =
            due.filter_map(|(_, told)| self.holder_record.trace_of(&told)).collect();
        descendants::kill(&traces.iter().collect::<Vec<_>>());
    }

    /// Signals the process of a token, through the pidfd that is already open, if any.
    fn signal(&self, token: Token, process: ProcessId, stage: Stage) -> std::io::Result<()> {
        let found;
        let pidfd = match self.watched(token, process) {
            Some(pidfd) => pidfd,
            None => match find(process) {
                Found::Same(pidfd) => {
                    found = pidfd;
                    &found
                }
                Found::Gone => return Ok(()),
                Found::Unknown(error) => return Err(error),
            },
        };
        let signal = stage.signal();
        match pidfd.signal(signal) {
            Err(error) if !is_gone(&error) => Err(error),
            _ => {
                let pid = process.pid;
                tracing::warn!(pid, token = token.0, "the engine is away for too long: {signal}");
                Ok(())
            }
        }
    }

    /// The pidfd of the process of a token, if the table says that this process is the owner.
    fn watched(&self, token: Token, process: ProcessId) -> Option<&Pidfd> {
        let hold = self.ledger.table.hold(token)?;
        let is_it = hold.asked.owner == Owner::Process(process);
        self.owners.of(hold.frame).filter(|_| is_it)
    }

    /// Handles that our incarnation is lost, and with it all holds of its processes.
    pub(crate) fn lost(&mut self, host: HostId, why: &LostWhy) {
        if host == NO_HOST || host != self.ledger.host {
            return;
        }
        tracing::error!(host = host.0, "everything that was held here is lost: {why}");
        let now = clock::boottime_ms();
        let deadlines = self.ledger.engine().map(|shared| shared.deadlines()).unwrap_or_default();
        // While no other host can have declared us gone, no other host has our holds.
        let kill_at = match why {
            LostWhy::NotRenewed { .. } => deadlines.kill_at,
            _ => now,
        };
        self.terminator.page = self.deadline.take().map(|page| (page, reason(why), kill_at));
        self.doom_all(kill_at, reason(why));
        self.lose_membership();
        self.end_doomed(now);
        self.changed = true;
    }

    /// Starts to kill all commands that this host had locks for. They must be dead before it joins.
    pub(crate) fn clear(&mut self) {
        let now = clock::boottime_ms();
        // Processes that are already scheduled keep their time. Processes that an earlier daemon
        // left have had their time.
        self.doom_all(now, Why::Gone);
        self.terminator.awaited = true;
        self.end_doomed(now);
    }

    fn doom_all(&mut self, kill_at: u64, why: Why) {
        for (token, told) in self.holder_record.iter().collect::<Vec<_>>() {
            self.terminator.note_lost(token, why);
            self.schedule_kill(token, told, kill_at);
        }
    }

    /// Schedules the kill of a process that has lost its hold. It is killed at `kill_at`, in
    /// milliseconds of CLOCK_BOOTTIME.
    pub(crate) fn schedule_kill(&mut self, token: Token, told: Holder, kill_at: u64) {
        // If no descriptor is left for a copy, the process is looked up later.
        let pidfd = self.watched(token, told.process).and_then(|pidfd| pidfd.try_clone().ok());
        let done = self.terminator.signalled.get(&told.process).copied();
        let trace = self.holder_record.trace_of(&told);
        self.terminator.lost_processes.add((token, told), (pidfd, trace), done, kill_at);
    }

    pub(crate) fn end_doomed(&mut self, now: u64) {
        if let Some((mut page, why, _)) =
            self.terminator.page.take_if(|(.., kill_at)| now >= *kill_at)
        {
            page.lost(why);
        }
        let was_awaited = self.terminator.are_awaited();
        for (token, proof) in self.terminator.lost_processes.look(now, find) {
            self.holder_record.end(token, proof);
        }
        if self.terminator.are_awaited() {
            return;
        }
        if std::mem::take(&mut self.terminator.awaited)
            && let Some(shared) = self.ledger.engine_mut()
        {
            shared.cleared();
        }
        if was_awaited && self.ledger.is_member() {
            self.ask_for_homeless();
        }
    }

    /// Publishes the time until which the holds are safe.
    pub(crate) fn keep_deadline(&mut self) {
        let Some((shared, writer)) = self.ledger.engine().zip(self.deadline.as_ref()) else {
            return;
        };
        let deadlines = shared.deadlines();
        if self.engine_status.published != deadlines {
            writer.publish(self.published_deadline());
            self.engine_status.published = deadlines;
        }
    }

    pub(crate) fn published_deadline(&self) -> Deadline {
        let Some(shared) = self.ledger.engine() else { return Deadline::default() };
        let deadlines = shared.deadlines();
        Deadline {
            reached_at: shared.health().renewed_ms.unwrap_or(0),
            term_at: deadlines.term_at,
            kill_at: deadlines.kill_at,
        }
    }

    /// Whether a grant may be told now: the client has time left to start a command, no process of
    /// this host that lost its lock still runs, and no history can have been lost since the grant.
    pub(crate) fn is_sure(&self) -> bool {
        let Some(shared) = self.ledger.engine() else { return true };
        let in_time = clock::boottime_ms() < shared.deadlines().term_at;
        let known = shared.is_current() && self.ledger.table.recovery().is_none();
        self.ledger.is_member() && in_time && known && !self.terminator.are_awaited()
    }
}

/// The reason that supervisors read on the deadline page.
fn reason(why: &LostWhy) -> Why {
    match why {
        LostWhy::NotRenewed { .. } => Why::Away,
        LostWhy::Fenced { .. } | LostWhy::Gone { .. } => Why::Gone,
        LostWhy::Rewritten => Why::Rewritten,
        LostWhy::Differs => Why::Other,
    }
}
