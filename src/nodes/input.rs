//! What a coordinator hears.

use super::Millis;
use crate::core::Token;

/// What happened at a node, or to the command. `node` is the index of the node in the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A connection is open, and the daemon there is the one that its name is pinned to.
    Reached {
        /// Which node.
        node: usize,
    },
    /// As [`Self::Reached`], but the node grants nothing over nodes for some time, because it had to make
    /// its state anew.
    NotYet {
        /// Which node.
        node: usize,
        /// For how many milliseconds.
        left_ms: Millis,
    },
    /// No connection could be opened, or it is broken.
    Away {
        /// Which node.
        node: usize,
        /// Whether trying again cannot help without a change by people: no such host, permission
        /// denied, another host key, no canal there.
        permanent: bool,
        /// The reason, for people.
        why: String,
    },
    /// The request waits at the node. It may be told repeatedly.
    Queued {
        /// Which node.
        node: usize,
    },
    /// The node granted its part; the grant is collecting.
    Granted {
        /// Which node.
        node: usize,
        /// The token of its grant.
        token: Token,
    },
    /// The node refused what it was asked.
    Refused {
        /// Which node.
        node: usize,
        /// The kind of the refusal.
        refusal: Refusal,
        /// The reason, for people.
        why: String,
    },
    /// The node answered a `ConfirmAt`: its part is firm.
    Confirmed {
        /// Which node.
        node: usize,
        /// When the call was sent.
        sent: Millis,
    },
    /// A `ConfirmAt` had an error: the grant is gone.
    ConfirmFailed {
        /// Which node.
        node: usize,
    },
    /// Another lock of the node has the token of a `ConfirmAt`. The grant is as it was.
    TokenTaken {
        /// Which node.
        node: usize,
        /// This token and all larger ones are free there.
        least: Token,
    },
    /// The node takes no such token, and will not: it is too far ahead of its clock. The grant is as it
    /// was.
    TokenRefused {
        /// Which node.
        node: usize,
        /// The reason, for people.
        why: String,
    },
    /// The node answered a `Renew`: its part is firm.
    Renewed {
        /// Which node.
        node: usize,
        /// When the call was sent.
        sent: Millis,
        /// For how long the node keeps it from now on, as it says; `None`: as it was asked.
        ttl_ms: Option<Millis>,
    },
    /// The node holds nothing for this request: the answer to a `Release`, also where there was
    /// nothing to release, and to a `Renew` of a lease that has ended or was forced.
    Gone {
        /// Which node.
        node: usize,
    },
    /// The node took a spare back before it was confirmed.
    SpareTaken {
        /// Which node.
        node: usize,
    },
    /// The request gives way: everything is given back and asked for anew, behind the requests that
    /// wait at the first node. Without effect once the command may have begun.
    Surrender,
    /// The request gives way for good: it is refused, to end a deadlock. Without effect if it does not
    /// wait any more.
    Deadlock {
        /// The deadlock, for people.
        why: String,
    },
    /// The command has ended, or the caller wants no lock any more.
    Stop,
    /// The time of an `Effect::WakeAt` has come.
    Tick,
}

/// Why a node refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is busy, paused, or too many wait already (75).
    Full,
    /// The time to wait is over (75).
    Timeout,
    /// The request is the victim of a deadlock (75).
    Deadlock,
    /// The node made its state anew and grants nothing over nodes for so many milliseconds more.
    NotYet {
        /// For how many milliseconds.
        left_ms: Millis,
    },
    /// This node will never grant it; others may: it is no node (no lasting state, an engine), or
    /// permits its user less.
    Unfit,
    /// The node knows a request for the same over a list of nodes that need not have one in common with
    /// this one (125).
    OtherList,
    /// No node can: the request itself is at fault (125).
    Invalid,
}
