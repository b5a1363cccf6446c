//! Rules that a test breaks on purpose, each by one switch in the real code, to check that random
//! seeds find it.

use std::cell::Cell;

/// A rule that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Every grant reaches its client, or the daemon revokes it.
    GrantsAreTold,
    /// The death of an owner ends its frame.
    DeathsAreNoticed,
    /// The inode identifies a process, because another process can get its pid.
    InodesIdentifyProcesses,
    /// A decision is in the log before a client learns of it.
    RecordsComeFirst,
    /// A lease lives for its whole TTL.
    LeasesLast,
    /// A host is not declared gone before its TTL is over.
    HostsLiveForTheirTtl,
    /// A host counts its TTL from sending a renewal, not from the answer.
    RenewalsCountWhenSent,
    /// A client receives a grant only while there is time to end its command.
    GrantsAreInTime,
    /// The commands of a lost incarnation end before the next incarnation joins.
    LostCommandsAreEnded,
    /// The daemon withdraws a waiter whose client is gone.
    DeadWaitersAreWithdrawn,
    /// The engine and its hosts notice a log that differs from the one they know.
    HistoriesAreCompared,
    /// After the log has lost entries, hosts grant nothing before the longest TTL has passed.
    RecoveriesWait,
    /// After the log has lost entries, each host reports the tokens that its clients received.
    ToldTokensAreReported,
    /// After the log has lost entries, a host requests again each grant that had not reached its
    /// client.
    OldGrantsAreAskedAnew,
    /// A host that rests reads the log before it serves a client.
    RestingHostsReadFirst,
}

/// All rules, and whether a test breaks them over an engine.
pub(super) const ALL: [(Rule, bool); 15] = [
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
    (Rule::RestingHostsReadFirst, true),
];

thread_local! {
    static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
}

/// Breaks a rule on this thread, or restores all rules.
pub(super) fn break_rule(rule: Option<Rule>) {
    BROKEN.set(rule);
}

pub(crate) fn is_broken(rule: Rule) -> bool {
    BROKEN.get() == Some(rule)
}

/// This value, or the other one while the rule is broken.
pub(crate) fn unless_broken<T>(rule: Rule, value: T, broken: T) -> T {
    if is_broken(rule) { broken } else { value }
}
