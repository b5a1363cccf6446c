//! Proof that a process may be removed from the record of this host.
//!
//! Invariant: a [`Removable`] exists only for a process that was seen dead, that holds nothing
//! according to the log, or that may outlive its lock because its client chose so.

use crate::host::Known;
use crate::processes::holder::Holder;
use canal_core::{OnLost, Owner, Table, Token};
use canal_sys::pidfd::Pidfd;
use canal_sys::process::Found;

/// Proves that a process no longer has to be ended.
#[derive(Debug)]
pub(crate) struct Removable(());

impl Removable {
    /// The kernel reports that the process has ended.
    pub(crate) fn of_end(pidfd: &Pidfd) -> Option<Self> {
        pidfd.has_ended().then_some(Self(()))
    }

    /// The lookup shows that the process no longer exists. An unknown state is not removable.
    pub(crate) fn of_absence(found: &Found) -> Option<Self> {
        matches!(found, Found::Gone).then_some(Self(()))
    }

    /// The log contained the grant, and no longer does. `table` is the table that this host follows
    /// as a member, in the history in which it sent the grant.
    pub(crate) fn of_release(table: &Table, token: Token) -> Option<Self> {
        table.hold(token).is_none().then_some(Self(()))
    }

    /// The client chose that its command is not killed (`--on-lost`), and the chosen step was
    /// taken.
    pub(crate) fn of_choice(on_lost: OnLost, was_asked_to_end: bool) -> Option<Self> {
        let is_over = match on_lost {
            OnLost::Warn => true,
            OnLost::Term => was_asked_to_end,
            OnLost::Kill => false,
        };
        is_over.then_some(Self(()))
    }
}

/// The state of a recorded process according to the log that this host now follows.
#[derive(Debug)]
pub(crate) enum Claim {
    /// It still has its hold.
    Holds,
    /// It released the hold, or an operator took the hold away.
    Over(Removable),
    /// The log does not contain it because its history was rewritten, or its state cannot be
    /// determined.
    Unknown,
}

impl Claim {
    /// `known` states whether the history of the grant is part of the history of `table`.
    pub(crate) fn of(table: &Table, known: Known, token: Token, told: &Holder) -> Self {
        match table.hold(token) {
            Some(hold) if hold.asked.owner == Owner::Process(told.process) => Self::Holds,
            // Each history assigns tokens in order, but two histories can assign the same token to
            // different grants.
            None if known == Known::Same => {
                Removable::of_release(table, token).map_or(Self::Unknown, Self::Over)
            }
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canal_core::{Change, ENTRY_VERSION, Entry, ProcessId, Revision, UnixMillis};

    /// A table in which nothing is held and the next token is `next`.
    fn table(next: Token) -> Table {
        let mut table = Table::default();
        let change = Change::Floor { token: next };
        let entry = Entry { version: ENTRY_VERSION, at: UnixMillis(1), change };
        table.apply(Revision(1), &entry, &mut Vec::new());
        assert_eq!(table.next_token(), next);
        table
    }

    fn told() -> Holder {
        let process = ProcessId { pid: 11, started: 7, inode: 9 };
        Holder { process, on_lost: OnLost::Kill, mark: None, tag: None, taken_over: false }
    }

    #[test]
    fn a_token_below_the_next_one_is_no_proof_of_a_release() {
        let table = table(Token(100));
        let claim = |known| Claim::of(&table, known, Token(99), &told());
        assert!(matches!(claim(Known::Same), Claim::Over(_)));
        assert!(matches!(claim(Known::Other), Claim::Unknown), "others were granted it since");
        assert!(matches!(claim(Known::TooOld), Claim::Unknown), "nobody can tell");
    }

    #[test]
    fn only_on_lost_warn_or_a_sent_term_lets_a_process_outlive_its_lock() {
        assert!(Removable::of_choice(OnLost::Kill, true).is_none());
        assert!(Removable::of_choice(OnLost::Term, false).is_none());
        assert!(Removable::of_choice(OnLost::Term, true).is_some());
        assert!(Removable::of_choice(OnLost::Warn, false).is_some());
    }
}
