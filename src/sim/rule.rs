//! Rules that a test breaks on purpose, each by one switch in the real code, to see that random
//! seeds find it.

use std::cell::Cell;

/// A rule that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Every grant is told to its client, or taken back.
    GrantsAreTold,
    /// The death of an owner ends its frame.
    DeathsAreNoticed,
    /// A process is known by its inode: its pid becomes that of another one.
    InodesIdentifyProcesses,
    /// A decision is on record before a client learns of it.
    RecordsComeFirst,
    /// A lease lives for its whole TTL.
    LeasesLast,
    /// A host is not declared gone before its TTL is over.
    HostsLiveForTheirTtl,
    /// A host counts its TTL from when it sent a renewal, and not from when that was answered.
    RenewalsCountWhenSent,
    /// A grant is told only while there is time to end its command.
    GrantsAreInTime,
    /// The commands of a lost incarnation are ended before the next one joins.
    LostCommandsAreEnded,
    /// A waiter whose client is gone is withdrawn.
    DeadWaitersAreWithdrawn,
    /// The engine and its hosts notice that the log is not the one that they know.
    HistoriesAreCompared,
    /// After the log has lost entries, nothing is granted before the longest TTL has passed.
    RecoveriesWait,
    /// After the log has lost entries, each host says which tokens it was told.
    ToldTokensAreReported,
    /// A grant that was not told before the log lost entries is asked for again after that.
    OldGrantsAreAskedAnew,
}

/// All rules, and whether they are broken over an engine.
pub(super) const ALL: [(Rule, bool); 14] = [
    (Rule::GrantsAreTold, false),
    (Rule::DeathsAreNoticed, false),
    (Rule::InodesIdentifyProcesses, false),
    (Rule::RecordsComeFirst, false),
    (Rule::LeasesLast, false),
    (Rule::DeadWaitersAreWithdrawn, false),
    (Rule::HostsLiveForTheirTtl, true),
    (Rule::RenewalsCountWhenSent, true),
    (Rule::GrantsAreInTime, true),
    (Rule::LostCommandsAreEnded, true),
    (Rule::HistoriesAreCompared, true),
    (Rule::RecoveriesWait, true),
    (Rule::ToldTokensAreReported, true),
    (Rule::OldGrantsAreAskedAnew, true),
];

thread_local! {
    static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
}

/// Breaks a rule on this thread, or none.
pub(super) fn break_rule(rule: Option<Rule>) {
    BROKEN.set(rule);
}

/// Whether a rule is broken on this thread.
pub(crate) fn is_broken(rule: Rule) -> bool {
    BROKEN.get() == Some(rule)
}
