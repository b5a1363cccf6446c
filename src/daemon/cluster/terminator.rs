//! The commands of this host that are being ended, because what they hold is lost or about to be.

use std::collections::{BTreeMap, BTreeSet};

use crate::core::{ProcessId, Token};
use crate::daemon::processes::lost_processes::{LOOK_EVERY_MS, LostProcesses, Stage};
use crate::sys::deadline::{Why, Writer};

/// Commands that are being stopped.
#[derive(Debug, Default)]
pub(crate) struct Terminator {
    /// Who was signalled, as this host cannot renew.
    pub(crate) signalled: BTreeMap<ProcessId, Stage>,
    /// Who could not be signalled for that, and was complained of.
    pub(crate) unsignalled: BTreeSet<ProcessId>,
    /// Those whose holds are lost, until they need not be ended any more.
    pub(crate) lost_processes: LostProcesses,
    /// Whether the member waits until none is left.
    pub(crate) awaited: bool,
    /// What those read who run the commands of a lost incarnation, and what to write there, and when
    /// (in milliseconds of CLOCK_BOOTTIME).
    pub(crate) page: Option<(Writer, Why, u64)>,
    /// Why holds were lost, for those who cannot read it on a page: it went with the daemon that
    /// wrote it.
    pub(crate) lost: BTreeMap<Token, Why>,
}

/// So many losses are remembered.
pub(crate) const LOST_MAX: usize = 4096;

impl Terminator {
    /// Why this hold was lost, if its process was ended for that.
    pub(crate) fn why_lost(&self, token: Token) -> Option<Why> {
        self.lost.get(&token).copied()
    }

    /// Notes why a hold was lost. The first reason counts.
    pub(crate) fn note_lost(&mut self, token: Token, why: Why) {
        self.lost.entry(token).or_insert(why);
        if self.lost.len() > LOST_MAX {
            self.lost.pop_first();
        }
    }

    /// Forgets what was lost under a token that is told anew.
    pub(crate) fn forget_lost(&mut self, token: Token) {
        self.lost.remove(&token);
    }

    /// When there is something to do, in milliseconds of CLOCK_BOOTTIME.
    pub(crate) fn next_due(&self, now: u64) -> Option<u64> {
        let soon = self.page.is_some() || !self.unsignalled.is_empty();
        self.lost_processes
            .next_look(now)
            .into_iter()
            .chain(soon.then_some(now + LOOK_EVERY_MS))
            .min()
    }

    /// Whether a process that lost what it holds may still run, so that nothing may be asked for.
    pub(crate) fn are_awaited(&self) -> bool {
        self.lost_processes.are_awaited()
    }

    /// What this host waits for before it asks for anything, for people.
    pub(crate) fn awaited_words(&self) -> Option<String> {
        let pids: Vec<String> = self.lost_processes.awaited().iter().map(u32::to_string).collect();
        let words =
            || format!("commands that lost their locks have to end first: pid {}", pids.join(", "));
        (!pids.is_empty()).then(words)
    }

    /// Whether what was told under a token is lost.
    pub(crate) fn is_lost(&self, token: Token) -> bool {
        self.lost_processes.has(token)
    }
}
