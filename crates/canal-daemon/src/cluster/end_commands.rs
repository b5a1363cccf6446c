//! Decides which commands to end, and when, so that they end before other hosts can be granted the
//! same locks.

use std::collections::{BTreeMap, BTreeSet};

use crate::host::{Known, LostWhy, Member};
use crate::processes::descendants::{self, Trace};
use crate::processes::holder_record::{Claim, Holder, HolderRecord};
use crate::processes::identity::find;
use crate::processes::lost_processes::{LOOK_EVERY_MS, LostProcesses, Stage};
use crate::processes::owners::Owners;
use canal_core::{OnLost, Owner, ProcessId, Table, Token};
use canal_sys::deadline::{Why, Writer};
use canal_sys::pidfd::{Pidfd, is_gone};
use canal_sys::process::Found;

/// The commands that received a grant, and those that are being ended.
#[derive(Debug)]
pub(crate) struct Terminator {
    /// The processes of this host that received a grant.
    pub record: HolderRecord,
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
    pub(super) fn new(record: HolderRecord) -> Self {
        Self {
            record,
            signalled: BTreeMap::new(),
            unsignalled: BTreeSet::new(),
            lost_processes: LostProcesses::default(),
            awaited: false,
            page: None,
            lost: BTreeMap::new(),
        }
    }

    /// When the terminator needs a turn, in milliseconds of CLOCK_BOOTTIME.
    pub(super) fn next_due(&self, now: u64) -> Option<u64> {
        let soon = self.page.is_some() || !self.unsignalled.is_empty();
        let soon = soon.then_some(now + LOOK_EVERY_MS);
        self.lost_processes.next_look(now).into_iter().chain(soon).min()
    }

    /// A message about the processes that must end before this host makes requests.
    pub(super) fn awaited_words(&self) -> Option<String> {
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

impl Terminator {
    /// Sends the signal of this stage to the commands that have not received it.
    pub(super) fn stop_all(&mut self, stage: Stage, watched: Watched<'_>) {
        if stage == Stage::Killed {
            self.kill_descendants();
        }
        for (token, told) in self.record.iter().collect::<Vec<_>>() {
            let Holder { process, on_lost, .. } = told;
            let Some(stage) = stage.allowed(on_lost) else { continue };
            if self.lost_processes.has(token) || self.signalled.get(&process) >= Some(&stage) {
                continue;
            }
            match signal(watched, token, process, stage) {
                Ok(()) => {
                    self.signalled.insert(process, stage);
                    self.unsignalled.remove(&process);
                }
                Err(error) => {
                    if self.unsignalled.insert(process) {
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
            let done = self.signalled.get(&told.process) >= Some(&Stage::Killed);
            told.on_lost == OnLost::Kill && !done && !self.lost_processes.has(token)
        };
        let due = self.record.iter().filter(|(token, told)| is_due(*token, told));
        let traces: Vec<Trace> = due.filter_map(|(_, told)| self.record.trace_of(&told)).collect();
        descendants::kill(&traces.iter().collect::<Vec<_>>());
    }

    /// Schedules the end of all commands that held something in the membership that is lost, with
    /// this page and this deadline.
    pub(super) fn lose_holds(
        &mut self,
        why: &LostWhy,
        (page, kill_at): (Option<Writer>, u64),
        watched: Watched<'_>,
        now: u64,
    ) {
        // While no other host can have declared this one gone, no other host has our holds.
        let (why, kill_at) = match why {
            LostWhy::NotRenewed => (Why::Away, kill_at),
            LostWhy::Fenced { .. } | LostWhy::Gone { .. } => (Why::Gone, now),
            LostWhy::Rewritten => (Why::Rewritten, now),
            LostWhy::Differs => (Why::Other, now),
        };
        self.page = page.map(|page| (page, why, kill_at));
        self.schedule_all(watched, kill_at, why);
    }

    /// Schedules the end of all commands for which this host had locks. They must have ended before
    /// it joins. Processes that are already scheduled keep their time.
    pub(super) fn clear(&mut self, watched: Watched<'_>, now: u64) {
        self.schedule_all(watched, now, Why::Gone);
        self.awaited = true;
    }

    /// Schedules the kill of processes that received a grant that the log does not contain. Forgets
    /// the processes whose grant has ended.
    pub(super) fn schedule_unknown(&mut self, member: &Member, watched: Watched<'_>, now: u64) {
        for (token, told) in self.record.iter().collect::<Vec<_>>() {
            let known = told.mark.map_or(Known::TooOld, |mark| member.knows(mark));
            match Claim::of(watched.table, known, token, &told) {
                Claim::Holds => {}
                Claim::Over => self.record.end(token),
                Claim::Unknown => {
                    self.schedule_kill(watched, (token, told), now, Why::Rewritten);
                }
            }
        }
    }

    pub(super) fn schedule_all(&mut self, watched: Watched<'_>, kill_at: u64, why: Why) {
        #[cfg(test)]
        if crate::sim::is_broken(crate::sim::Rule::LostCommandsAreEnded) {
            return;
        }
        for (token, told) in self.record.iter().collect::<Vec<_>>() {
            self.schedule_kill(watched, (token, told), kill_at, why);
        }
    }

    /// Schedules the kill of a process that has lost its hold. It is killed at `kill_at`, in
    /// milliseconds of CLOCK_BOOTTIME.
    fn schedule_kill(
        &mut self,
        watched: Watched<'_>,
        (token, told): (Token, Holder),
        kill_at: u64,
        why: Why,
    ) {
        // The first reason is kept.
        self.lost.entry(token).or_insert(why);
        if self.lost.len() > LOST_MAX {
            self.lost.pop_first();
        }
        // If no descriptor is left for a copy, the process is looked up later.
        let pidfd = watched.find(token, told.process).and_then(|pidfd| pidfd.try_clone().ok());
        let done = self.signalled.get(&told.process).copied();
        let trace = self.record.trace_of(&told);
        self.lost_processes.add((token, told), (pidfd, trace), done, kill_at);
    }

    /// Ends the commands that are due.
    pub(super) fn end_due(&mut self, now: u64) {
        if let Some((mut page, why, _)) = self.page.take_if(|(.., kill_at)| now >= *kill_at) {
            page.lost(why);
        }
        for token in self.lost_processes.look(now, find) {
            self.record.end(token);
        }
    }

    /// Handles a hold that has ended in the table, while this host is a member. A process that lost
    /// the token in an earlier membership did not release anything.
    pub(super) fn hold_ended(&mut self, table: &Table, token: Token) {
        if !self.lost_processes.has(token) && table.hold(token).is_none() {
            self.record.end(token);
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
