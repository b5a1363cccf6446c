//! The inputs of a coordinator.

use super::Millis;
use canal_core::Token;
use canal_protocol::NodeFailure;

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// An event at the node with this index in the plan.
    Node(usize, Event),
    /// The request gives way: it releases everything and asks again, behind the requests that wait
    /// at the first node. This has no effect once the command may have begun.
    Surrender,
    /// The request gives way for good: it is refused, to end a deadlock, which this text describes
    /// for the user. This has no effect if it no longer waits.
    Deadlock(String),
    /// The command has ended, or the caller no longer wants the lock.
    Stop,
    /// The time of an `Effect::WakeAt` has come.
    Tick,
}

/// An event at a node. Failures are texts for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A connection is open, and the daemon there is the one to which the name is pinned. If it had
    /// to recreate its state, it does not grant anything over nodes for this many milliseconds.
    Reached(Option<Millis>),
    /// No connection could be opened, or it broke.
    Away(NodeFailure),
    /// The request waits at the node. This event may come repeatedly.
    Queued,
    /// The node granted its part with this token; the grant is collecting.
    Granted(Token),
    /// The node refused the request.
    Refused(Refusal, NodeFailure),
    /// The node answered the `ConfirmAt` that was sent at this time: its part is firm.
    Confirmed(Millis),
    /// A `ConfirmAt` failed: the grant is gone.
    ConfirmFailed,
    /// Another lock of the node has the token of a `ConfirmAt`. The grant is unchanged. This token
    /// and all larger ones are free there.
    TokenTaken(Token),
    /// The node will never accept such a token: it is too far ahead of the node's clock. The grant
    /// is unchanged.
    TokenRefused(NodeFailure),
    /// The node answered a `Renew`: its part is firm.
    Renewed {
        /// When the call was sent.
        sent: Millis,
        /// How long the node keeps the part from now on, according to its answer; `None`: as long
        /// as the coordinator asked.
        ttl_ms: Option<Millis>,
    },
    /// The node holds nothing for this request. This answers a `Release`, even if there was nothing
    /// to release, and a `Renew` of a lease that has ended or was forced.
    Gone,
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
    /// The node recreated its state, and does not grant anything over nodes for this many
    /// milliseconds.
    NotYet(Millis),
    /// This node will never grant it, but others may: it cannot be a node (no lasting state, an
    /// engine), or permits its user less.
    Unfit,
    /// The node knows a request for the same key over a list of nodes that may have none in common
    /// with this list (125).
    OtherList,
    /// No node can grant it: the request itself is at fault (125).
    Invalid,
}
