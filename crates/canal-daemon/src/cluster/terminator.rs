//! The commands of this host that are being ended because their holds are lost or about to be lost.

use std::collections::{BTreeMap, BTreeSet};

use crate::processes::lost_processes::{LOOK_EVERY_MS, LostProcesses, Stage};
use canal_core::{ProcessId, Token};
use canal_sys::deadline::{Why, Writer};

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
    /// Why this hold was lost, if its process was ended for that reason.
    pub(crate) fn why_lost(&self, token: Token) -> Option<Why> {
        self.lost.get(&token).copied()
    }

    /// Records why a hold was lost. The first reason is kept.
    pub(crate) fn note_lost(&mut self, token: Token, why: Why) {
        self.lost.entry(token).or_insert(why);
        if self.lost.len() > LOST_MAX {
            self.lost.pop_first();
        }
    }

    /// Forgets the loss of a token, because a client receives the token again.
    pub(crate) fn forget_lost(&mut self, token: Token) {
        self.lost.remove(&token);
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

    /// Whether a process that lost its hold may still run, so that this host must not make
    /// requests.
    pub(crate) fn are_awaited(&self) -> bool {
        self.lost_processes.are_awaited()
    }

    /// A message about the processes that must end before this host makes requests.
    pub(crate) fn awaited_words(&self) -> Option<String> {
        let pids: Vec<String> = self.lost_processes.awaited().iter().map(u32::to_string).collect();
        let words =
            || format!("commands that lost their locks must end first: pid {}", pids.join(", "));
        (!pids.is_empty()).then(words)
    }

    /// Whether the hold of this token is lost and its process still has to be ended.
    pub(crate) fn is_lost(&self, token: Token) -> bool {
        self.lost_processes.has(token)
    }
}
