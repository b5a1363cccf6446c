//! Rules that a test breaks on purpose, each by one switch, to see that random seeds find it. Those of
//! the coordinator are switched in its own code, those of a node in the model of the node.

use std::cell::Cell;

/// A rule that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::nodes) enum Rule {
    /// A node that had to make its state anew grants nothing for the longest TTL.
    BlankNodesWait,
    /// A lease counts from the time before the call was sent.
    CountsFromSending,
    /// As many leases count as the requirement says.
    CountsEnough,
    /// A node refuses a list with which another one in use need not have a node in common.
    ListsMeet,
    /// The command starts when enough nodes have answered the confirmation.
    StartsWhenConfirmed,
    /// A confirmation is void if the grant is gone.
    GoneIsNotConfirmed,
    /// After a confirmation, a node gives larger tokens.
    TokensGrow,
    /// Before it confirms, a request lets all nodes that it reaches know its list.
    AnnouncesLists,
    /// Nodes are asked one after the other.
    AsksInOrder,
    /// A request that reaches too few nodes holds nothing.
    GivesBackBelowNeed,
    /// A node never lowers the TTL of a lease.
    TtlOnlyGrows,
    /// A part that is not confirmed ends if nothing is heard of its client for the TTL.
    SilentPartsEnd,
    /// The time to wait begins with the request, not with each coordinator.
    WaitsOnce,
    /// A request that comes back to a node goes on under its name there.
    ComesBackUnderItsName,
    /// A request that waits looks for deadlocks.
    LooksForDeadlocks,
    /// It reads the nodes, too, that others read who look near it.
    ReadsWhereOthersRead,
    /// Of a ring, the request gives way whose turn it is.
    OneGivesWay,
    /// A collecting grant ends with its connection.
    CollectingEnds,
}

thread_local! {
    static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
}

/// Breaks a rule on this thread, or none.
pub(in crate::nodes) fn break_rule(rule: Option<Rule>) {
    BROKEN.set(rule);
}

/// Whether a rule is broken on this thread.
pub(in crate::nodes) fn is_broken(rule: Rule) -> bool {
    BROKEN.get() == Some(rule)
}
