//! Rules that a test breaks on purpose, one switch each, to see that random seeds find it. The
//! switches of the coordinator's rules are in its own code, those of a node's rules in the model of
//! the node.

use std::cell::Cell;

/// A rule that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A node that had to recreate its state grants nothing for the longest TTL.
    BlankNodesWait,
    /// A lease counts from the time before the call was sent.
    CountsFromSending,
    /// At least as many leases count as the requirement demands.
    CountsEnough,
    /// A node refuses a list that may have no node in common with another list in use.
    ListsMeet,
    /// The command starts when enough nodes have answered the confirmation.
    StartsWhenConfirmed,
    /// A confirmation is void if the grant is gone.
    GoneIsNotConfirmed,
    /// After a confirmation, a node uses larger tokens.
    TokensGrow,
    /// Before it confirms, a request announces its list to all nodes in reach.
    AnnouncesLists,
    /// Nodes are asked one after the other.
    AsksInOrder,
    /// A request that reaches too few nodes holds nothing.
    GivesBackBelowNeed,
    /// A node never lowers the TTL of a lease.
    TtlOnlyGrows,
    /// An unconfirmed part ends if its client sends nothing for the TTL.
    SilentPartsEnd,
    /// The time to wait begins with the request, not with each coordinator.
    WaitsOnce,
    /// A request that comes back to a node continues under its old name there.
    ComesBackUnderItsName,
    /// A request that waits looks for deadlocks.
    LooksForDeadlocks,
    /// It also reads the nodes that other readers near it read.
    ReadsWhereOthersRead,
    /// The request of a ring whose turn it is gives way.
    OneGivesWay,
    /// A collecting grant ends with its connection.
    CollectingEnds,
}

thread_local! {
    static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
}

/// Breaks a rule on this thread, or none.
pub(crate) fn break_rule(rule: Option<Rule>) {
    BROKEN.set(rule);
}

/// Whether a rule is broken on this thread.
pub(crate) fn is_broken(rule: Rule) -> bool {
    BROKEN.get() == Some(rule)
}
