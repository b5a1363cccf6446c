//! The inputs of a coordinator.

use super::Millis;
use canal_core::Token;

/// An event at a node or of the command. `node` is the index of the node in the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A connection is open, and the daemon there is the one to which the name is pinned.
    Reached {
        /// The node.
        node: usize,
    },
    /// Like [`Self::Reached`], but the node does not grant anything over nodes for some time,
    /// because it had to recreate its state.
    NotYet {
        /// The node.
        node: usize,
        /// The rest of that time, in milliseconds.
        left_ms: Millis,
    },
    /// No connection could be opened, or it broke.
    Away {
        /// The node.
        node: usize,
        /// Whether another attempt cannot help until a person changes something: no such host,
        /// permission denied, another host key, no canal there.
        permanent: bool,
        /// The reason, as text for the user.
        why: String,
    },
    /// The request waits at the node. This input may come repeatedly.
    Queued {
        /// The node.
        node: usize,
    },
    /// The node granted its part; the grant is collecting.
    Granted {
        /// The node.
        node: usize,
        /// The token of its grant.
        token: Token,
    },
    /// The node refused the request.
    Refused {
        /// The node.
        node: usize,
        /// The kind of the refusal.
        refusal: Refusal,
        /// The reason, as text for the user.
        why: String,
    },
    /// The node answered a `ConfirmAt`: its part is firm.
    Confirmed {
        /// The node.
        node: usize,
        /// When the call was sent.
        sent: Millis,
    },
    /// A `ConfirmAt` failed: the grant is gone.
    ConfirmFailed {
        /// The node.
        node: usize,
    },
    /// Another lock of the node has the token of a `ConfirmAt`. The grant is unchanged.
    TokenTaken {
        /// The node.
        node: usize,
        /// This token and all larger ones are free there.
        least: Token,
    },
    /// The node will never accept such a token: it is too far ahead of the node's clock. The grant
    /// is unchanged.
    TokenRefused {
        /// The node.
        node: usize,
        /// The reason, as text for the user.
        why: String,
    },
    /// The node answered a `Renew`: its part is firm.
    Renewed {
        /// The node.
        node: usize,
        /// When the call was sent.
        sent: Millis,
        /// How long the node keeps the part from now on, according to its answer; `None`: as long
        /// as the coordinator asked.
        ttl_ms: Option<Millis>,
    },
    /// The node holds nothing for this request. This answers a `Release`, even if there was nothing
    /// to release, and a `Renew` of a lease that has ended or was forced.
    Gone {
        /// The node.
        node: usize,
    },
    /// The node took a spare back before its confirmation.
    SpareTaken {
        /// The node.
        node: usize,
    },
    /// The request gives way: it releases everything and asks again, behind the requests that wait
    /// at the first node. This has no effect once the command may have begun.
    Surrender,
    /// The request gives way for good: it is refused, to end a deadlock. This has no effect if it
    /// no longer waits.
    Deadlock {
        /// The deadlock, as text for the user.
        why: String,
    },
    /// The command has ended, or the caller no longer wants the lock.
    Stop,
    /// The time of an `Effect::WakeAt` has come.
    Tick,
}

/// Why a node refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The key is busy or paused, or too many requests wait already (75).
    Full,
    /// The time to wait is over (75).
    Timeout,
    /// The request is the victim of a deadlock (75).
    Deadlock,
    /// The node recreated its state, and does not grant anything over nodes for some time.
    NotYet {
        /// The rest of that time, in milliseconds.
        left_ms: Millis,
    },
    /// This node will never grant it, but others may: it cannot be a node (no lasting state, an
    /// engine), or permits its user less.
    Unfit,
    /// The node knows a request for the same key over a list of nodes that may have none in common
    /// with this list (125).
    OtherList,
    /// No node can grant it: the request itself is at fault (125).
    Invalid,
}
