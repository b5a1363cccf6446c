//! Decides which commands to end, and when, so that they end before other hosts can be granted the
//! same locks.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::Cluster;
use crate::host::LostWhy;
use crate::processes::descendants::{self, Trace};
use crate::processes::holder_record::{Holder, Removable};
use crate::processes::identity::find;
use crate::processes::lost_processes::{LOOK_EVERY_MS, LostProcesses, Stage};
use crate::processes::owners::Owners;
use canal_core::{OnLost, Owner, ProcessId, Table, Token};
use canal_sys::clock;
use canal_sys::deadline::{Why, Writer};
use canal_sys::pidfd::{Pidfd, is_gone};
use canal_sys::process::Found;

/// Commands that are being ended.
#[derive(Debug, Default)]
pub(crate) struct Terminator {
    /// The processes that were signalled because this host cannot renew, with the last signal.
    pub signalled: BTreeMap<ProcessId, Stage>,
    /// The processes for which that signal failed. The failure was logged.
    pub unsignalled: BTreeSet<ProcessId>,
    /// The processes whose holds are lost, until they no longer have to be ended.
    pub lost_processes: LostProcesses,
    /// Whether the member waits until none of these processes is left.
    pub awaited: bool,
    /// The deadline page of a lost incarnation, the reason to write there for its supervisors, and
    /// when to write it, in milliseconds of CLOCK_BOOTTIME.
    pub page: Option<(Writer, Why, u64)>,
    /// Why holds were lost, for clients that can no longer read the reason on a page: the page
    /// ended with the daemon that wrote it.
    pub lost: BTreeMap<Token, Why>,
}

/// How many lost holds are remembered.
pub(crate) const LOST_MAX: usize = 4096;

impl Terminator {
    /// Records why a hold was lost. The first reason is kept.
    pub(crate) fn note_lost(&mut self, token: Token, why: Why) {
        self.lost.entry(token).or_insert(why);
        if self.lost.len() > LOST_MAX {
            self.lost.pop_first();
        }
    }

    /// When the terminator needs a turn, in milliseconds of CLOCK_BOOTTIME.
    pub(crate) fn next_due(&self, now: u64) -> Option<u64> {
        let soon = self.page.is_some() || !self.unsignalled.is_empty();
        self.lost_processes
            .next_look(now)
            .into_iter()
            .chain(soon.then_some(now + LOOK_EVERY_MS))
            .min()
    }

    /// A message about the processes that must end before this host makes requests.
    pub(crate) fn awaited_words(&self) -> Option<String> {
        let pids: Vec<String> = self.lost_processes.awaited().iter().map(u32::to_string).collect();
        let words =
            || format!("commands that lost their locks must end first: pid {}", pids.join(", "));
        (!pids.is_empty()).then(words)
    }
}

/// The processes whose pidfds are already open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched<'a> {
    pub table: &'a Table,
    pub owners: &'a Owners,
}

impl<'a> Watched<'a> {
    /// The pidfd of the process of a token, if the table names this process as the owner.
    fn find(self, token: Token, process: ProcessId) -> Option<&'a Pidfd> {
        let hold = self.table.hold(token)?;
        let is_it = hold.asked.owner == Owner::Process(process);
        self.owners.of(hold.frame).filter(|_| is_it)
    }
}

impl Cluster {
    /// Signals the commands whose deadline has passed.
    pub(crate) fn stop_due(&mut self, is_member: bool, watched: Watched<'_>, now: u64) {
        let deadlines = self.driver.member.deadlines();
        if is_member {
            if now < deadlines.term_at {
                self.terminator.signalled.clear();
                self.terminator.unsignalled.clear();
            } else {
                let stage = if now < deadlines.kill_at { Stage::Asked } else { Stage::Killed };
                self.stop_all(stage, watched);
            }
        } else if self.unclaimed_until().is_some_and(|until| now >= until) {
            self.schedule_all(watched, now, Why::Away);
        }
    }

    /// When the next command is due for a signal, in milliseconds of CLOCK_BOOTTIME.
    pub(crate) fn next_stop(&self, is_member: bool) -> Option<u64> {
        let (deadlines, now) = (self.driver.member.deadlines(), clock::boottime_ms());
        let times = match is_member {
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
        let is_unclaimed = !self.status.let_in && !self.holder_record.is_empty();
        is_unclaimed.then(|| self.status.began_ms.saturating_add(self.status.ttl_ms))
    }

    fn stop_all(&mut self, stage: Stage, watched: Watched<'_>) {
        if stage == Stage::Killed {
            self.kill_descendants();
        }
        for (token, told) in self.holder_record.iter().collect::<Vec<_>>() {
            let Holder { process, on_lost, .. } = told;
            let Some(stage) = stage.allowed(on_lost) else { continue };
            if self.terminator.lost_processes.has(token)
                || self.terminator.signalled.get(&process) >= Some(&stage)
            {
                continue;
            }
            match signal(watched, token, process, stage) {
                Ok(()) => {
                    self.terminator.signalled.insert(process, stage);
                    self.terminator.unsignalled.remove(&process);
                }
                Err(error) => {
                    if self.terminator.unsignalled.insert(process) {
                        let pid = process.pid;
                        tracing::error!(pid, token = token.0, %error, "cannot stop the process yet");
                    }
                }
            }
        }
    }

    /// Kills the processes that run under the holds whose owners are about to be killed. Processes
    /// started in the meantime are killed once this host has released the holds.
    fn kill_descendants(&self) {
        let is_due = |token, told: &Holder| {
            let done = self.terminator.signalled.get(&told.process) >= Some(&Stage::Killed);
            told.on_lost == OnLost::Kill && !done && !self.terminator.lost_processes.has(token)
        };
        let due = self.holder_record.iter().filter(|(token, told)| is_due(*token, told));
        let traces: Vec<Trace> =
            due.filter_map(|(_, told)| self.holder_record.trace_of(&told)).collect();
        descendants::kill(&traces.iter().collect::<Vec<_>>());
    }

    /// Schedules the end of all commands that held something in the membership that is lost.
    pub(crate) fn lose_holds(&mut self, why: &LostWhy, watched: Watched<'_>, now: u64) {
        // While no other host can have declared this one gone, no other host has our holds.
        let kill_at = match why {
            LostWhy::NotRenewed { .. } => self.driver.member.deadlines().kill_at,
            _ => now,
        };
        self.terminator.page = self.page.take().map(|page| (page, reason(why), kill_at));
        self.schedule_all(watched, kill_at, reason(why));
    }

    /// Schedules the end of all commands for which this host had locks. They must have ended before
    /// it joins. Processes that are already scheduled keep their time.
    pub(crate) fn clear(&mut self, watched: Watched<'_>, now: u64) {
        self.schedule_all(watched, now, Why::Gone);
        self.terminator.awaited = true;
    }

    fn schedule_all(&mut self, watched: Watched<'_>, kill_at: u64, why: Why) {
        #[cfg(test)]
        if crate::sim::is_broken(crate::sim::Rule::LostCommandsAreEnded) {
            return;
        }
        for (token, told) in self.holder_record.iter().collect::<Vec<_>>() {
            self.terminator.note_lost(token, why);
            self.schedule_kill(watched, (token, told), kill_at);
        }
    }

    /// Schedules the kill of a process that has lost its hold. It is killed at `kill_at`, in
    /// milliseconds of CLOCK_BOOTTIME.
    pub(crate) fn schedule_kill(
        &mut self,
        watched: Watched<'_>,
        (token, told): (Token, Holder),
        kill_at: u64,
    ) {
        // If no descriptor is left for a copy, the process is looked up later.
        let pidfd = watched.find(token, told.process).and_then(|pidfd| pidfd.try_clone().ok());
        let done = self.terminator.signalled.get(&told.process).copied();
        let trace = self.holder_record.trace_of(&told);
        self.terminator.lost_processes.add((token, told), (pidfd, trace), done, kill_at);
    }

    /// Ends the commands that are due. Returns whether this host was waiting for their end and now
    /// need not wait any longer.
    pub(crate) fn end_lost(&mut self, now: u64) -> bool {
        if let Some((mut page, why, _)) =
            self.terminator.page.take_if(|(.., kill_at)| now >= *kill_at)
        {
            page.lost(why);
        }
        let was_awaited = self.terminator.lost_processes.are_awaited();
        for (token, removable) in self.terminator.lost_processes.look(now, find) {
            self.holder_record.end(token, removable);
        }
        if self.terminator.lost_processes.are_awaited() {
            return false;
        }
        if std::mem::take(&mut self.terminator.awaited) {
            self.driver.cleared();
        }
        was_awaited
    }

    /// Handles a hold that has ended in the table, while this host is a member. A process that lost
    /// the token in an earlier membership did not release anything.
    pub(crate) fn hold_ended(&mut self, table: &Table, token: Token) {
        if !self.terminator.lost_processes.has(token)
            && let Some(removable) = Removable::of_release(table, token)
        {
            self.holder_record.end(token, removable);
        }
    }
}

/// Signals the process of a token, through the pidfd that is already open, if any.
fn signal(
    watched: Watched<'_>,
    token: Token,
    process: ProcessId,
    stage: Stage,
) -> std::io::Result<()> {
    let found;
    let pidfd = match watched.find(token, process) {
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
            tracing::warn!(
                pid,
                token = token.0,
                "the engine has been away for too long: sent {signal}"
            );
            Ok(())
        }
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
