//! Decides which commands to end, and when, so that they end before other hosts can be granted the
//! same locks.

use std::collections::BTreeMap;

use crate::membership::{Known, LostWhy, Member};
use crate::processes::holder_record::{Claim, Holder, HolderRecord};
use crate::processes::identify_owner::find;
use crate::processes::lost_processes::{LOOK_EVERY_MS, LostProcesses};
use crate::processes::watch_owners::Owners;
use canal_core::{Owner, ProcessId, Table, Token};
use canal_sys::deadline_page::{Why, Writer};
use canal_sys::pidfd::Pidfd;

/// The commands that received a grant, and those that are being ended.
#[derive(Debug)]
pub(crate) struct Terminator {
    /// The processes of this host that received a grant.
    pub record: HolderRecord,
    /// The processes whose holds are lost, or will be unless the engine answers, until they no
    /// longer have to be ended.
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
            lost_processes: LostProcesses::default(),
            awaited: false,
            page: None,
            lost: BTreeMap::new(),
        }
    }

    /// When the terminator needs a turn, in milliseconds of CLOCK_BOOTTIME.
    pub(super) fn next_due(&self, now: u64) -> Option<u64> {
        let page = self.page.is_some().then_some(now + LOOK_EVERY_MS);
        self.lost_processes.next_look(now).into_iter().chain(page).min()
    }

    /// A message about the processes that must end before this host makes requests.
    pub(super) fn awaited_words(&self) -> Option<String> {
        let awaited = self.lost_processes.awaited();
        let pids = awaited.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let what = "commands that lost their locks must end first: pid";
        (!pids.is_empty()).then(|| format!("{what} {pids}"))
    }
}

/// The commands to end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ToEnd<'a> {
    /// Those whose deadline has passed.
    Due,
    /// All for which this host had locks. They must be dead before it joins.
    All,
    /// Those whose grant the log does not know, because its history was rewritten.
    Unknown,
    /// Those that held something in the membership that is lost.
    Lost(&'a LostWhy),
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
    /// Schedules the kill of processes that received a grant that the log does not contain. Forgets
    /// the processes whose grant has ended.
    pub(super) fn schedule_unknown(&mut self, member: &Member, watched: Watched<'_>, now: u64) {
        for (token, told) in self.record.each().clone() {
            let known = told.mark.map_or(Known::TooOld, |mark| member.knows(mark));
            match Claim::of(watched.table, known, token, &told) {
                Claim::Holds => {}
                Claim::Over => self.record.end(token),
                Claim::Unknown => self.schedule_kill(watched, (token, told), now, Why::Rewritten),
            }
        }
    }

    /// Schedules the end of all commands.
    pub(super) fn schedule_all(&mut self, watched: Watched<'_>, kill_at: u64, why: Why) {
        #[cfg(test)]
        if crate::sim::is_broken(crate::sim::Rule::LostCommandsAreEnded) {
            return;
        }
        for holder in self.record.each().clone() {
            self.schedule_kill(watched, holder, kill_at, why);
        }
    }

    /// Schedules the kill of a process that has lost its hold. It is killed at `at`, in
    /// milliseconds of CLOCK_BOOTTIME.
    fn schedule_kill(&mut self, watched: Watched<'_>, holder: (Token, Holder), at: u64, why: Why) {
        let (token, told) = holder;
        if self.lost_processes.has(token) {
            return;
        }
        // The first reason is kept.
        self.lost.entry(token).or_insert(why);
        if self.lost.len() > LOST_MAX {
            self.lost.pop_first();
        }
        // If no descriptor is left for a copy, the process is looked up later.
        let pidfd = watched.find(token, told.process).and_then(|pidfd| pidfd.try_clone().ok());
        let trace = self.record.trace_of(&told);
        self.lost_processes.add(holder, (pidfd, trace), at);
    }

    /// Ends the commands that are due.
    pub(super) fn end_due(&mut self, watched: Watched<'_>, now: u64) {
        if let Some((mut page, why, _)) = self.page.take_if(|(.., kill_at)| now >= *kill_at) {
            page.lost(why);
        }
        let watched = |token, process| watched.find(token, process);
        for token in self.lost_processes.look(now, watched, find) {
            self.record.end(token);
        }
    }
}
