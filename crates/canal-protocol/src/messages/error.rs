//! The errors of calls.

use serde::{Deserialize, Serialize};

use crate::service::{INTERFACE, NODES_INTERFACE};
use crate::{CycleStepInfo, HolderInfo, LostLease, NodesRefusal, SizeNote};

/// The name of an error, without the interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErrorName {
    /// Not acquired; `reason` is `full`, `timeout`, `paused`, `max-waiting`, `superseded` or
    /// `deadlock`. Exit code 75.
    #[default]
    Refused,
    /// The request itself is wrong: an invalid key, more slots at once than the lock has, `per` 0.
    BadRequest,
    /// The key is in use, or has a stored size, as another kind of lock.
    Mismatch,
    /// Nothing to release: the caller does not hold it.
    NotHeld,
    /// The lease has ended; `reason` is `expired`, `released`, `forced`, `withdrawn`, or `unknown`
    /// if the daemon does not know its handle. Exit code 122.
    LeaseLost,
    /// The caller may not do this.
    Denied,
    /// The owner's process has ended.
    OwnerGone,
    /// No request of this tag waits for a confirmation.
    UnknownTag,
    /// Too many connections; try again later.
    TooManyConnections,
    /// Too many requests of this user already wait.
    TooManyWaiters,
    /// This user holds too many leases.
    TooManyLeases,
    /// The keys that this user holds and waits for take too much room.
    TooManyKeys,
    /// A message is too large, or too many calls were sent ahead.
    TooMuch,
    /// A message does not follow the protocol; the daemon closes the connection after it.
    Malformed,
    /// The disk under the journal is full, so the daemon accepts nothing new.
    DiskFull,
    /// The configuration is invalid; the previous one stays in force.
    BadConfiguration,
    /// The daemon is about to stop; repeat the call, and a new daemon will answer.
    Stopping,
    /// A feature of a later version.
    Unsupported,
    /// The daemon works over an engine, and the engine is unreachable, or this host is not a member
    /// yet, or the table is being recovered.
    EngineAway,
    /// The caller would become the command, which over an engine needs a supervisor: repeat the
    /// call from a child of a supervisor.
    SupervisorRequired,
    /// The key cannot have a leader: it has several slots, or is only read, so several holders can
    /// have it at once.
    NotExclusive,
    /// The daemon has a bug, and released everything that the call granted.
    Fault,
    /// Only over nodes: a key is held or waited for over another list of nodes, and a sufficient
    /// set of one list may share no node with a sufficient set of the other.
    NodeListDiffers,
    /// Only over nodes: the daemon is not a node, because its state would not outlive a reboot, or
    /// because it works over an engine.
    NotLasting,
    /// Only over nodes: the daemon had to recreate its state, and grants nothing over nodes for a
    /// while.
    NotYet,
    /// Only over nodes: more than half of the nodes are not enough for the request.
    RequireTooLarge,
    /// Only over nodes: the part to confirm was not granted, or has ended.
    Gone,
    /// Only over nodes: another hold of the node already has the token of a confirmation. Confirm
    /// all parts again with a larger one, or release them.
    TokenTaken,
}

/// The message of [`ErrorName::OwnerGone`].
pub const OWNER_GONE: &str = "the process that would hold the lock has ended";

/// An error reply: a name and the details for the user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The error; the reply has it in its `error` field, not among its parameters.
    #[serde(skip)]
    pub name: ErrorName,
    /// For people: lower case, one line that states the error and what was expected.
    pub message: String,
    /// The action to take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<Box<str>>,
    /// For [`ErrorName::Refused`]: `full`, `timeout`, `paused`, `max-waiting`, `superseded`,
    /// `deadlock`. For [`ErrorName::LeaseLost`]: how the lease ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Box<str>>,
    /// For [`ErrorName::Refused`]: the holders of the requested keys. For [`ErrorName::LeaseLost`]:
    /// the present holders of the lease's first key, if they block it.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub holders: Box<[HolderInfo]>,
    /// For [`ErrorName::Refused`] because of a deadlock of several sessions: the whole deadlock.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub cycle: Box<[CycleStepInfo]>,
    /// For [`ErrorName::LeaseLost`]: the lost lease, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<Box<LostLease>>,
    /// For [`ErrorName::Refused`]: notes about sizes that differ from those in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notes: Option<Box<Vec<SizeNote>>>,
    /// For an error of the interface of nodes: further details.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Box<NodesRefusal>>,
}

impl Failure {
    /// An error with a message.
    pub fn new(name: ErrorName, message: impl Into<String>) -> Self {
        Self { name, message: message.into(), ..Self::default() }
    }

    /// Notes about sizes that differ from those in use.
    pub fn notes(&self) -> &[SizeNote] {
        self.notes.as_deref().map_or(&[], Vec::as_slice)
    }

    /// Adds notes about sizes.
    pub fn add_notes(&mut self, mut notes: Vec<SizeNote>) {
        if !notes.is_empty() {
            self.notes.get_or_insert_default().append(&mut notes);
        }
    }

    /// Adds the word for the reason.
    #[must_use]
    pub fn because(mut self, reason: impl Into<Box<str>>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Adds the action to take.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<Box<str>>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl ErrorName {
    /// `io.canal.Lock.Name`, or `io.canal.Nodes.Name`.
    pub fn qualified(self) -> String {
        format!("{}.{self:?}", self.interface())
    }

    /// The interface of the error.
    fn interface(self) -> &'static str {
        match self {
            Self::NodeListDiffers
            | Self::NotLasting
            | Self::NotYet
            | Self::RequireTooLarge
            | Self::Gone
            | Self::TokenTaken => NODES_INTERFACE,
            _ => INTERFACE,
        }
    }

    /// The error with a qualified name, if it is one of canal's.
    pub fn from_qualified(name: &str) -> Option<Self> {
        let (interface, short) = name.rsplit_once('.')?;
        let short = serde_json::Value::String(short.to_owned());
        serde_json::from_value(short).ok().filter(|name: &Self| name.interface() == interface)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canal_core::NodeId;

    #[test]
    fn each_error_is_known_by_the_name_of_its_own_interface_only() {
        for (name, qualified) in [
            (ErrorName::Refused, "io.canal.Lock.Refused"),
            (ErrorName::Gone, "io.canal.Nodes.Gone"),
        ] {
            assert_eq!(name.qualified(), qualified);
            assert_eq!(ErrorName::from_qualified(qualified), Some(name));
        }
        for wrong in ["io.canal.Lock.Gone", "io.canal.Nodes.Refused", "io.canal.Lock", "Gone", ""] {
            assert_eq!(ErrorName::from_qualified(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_an_error_of_nodes_says_stands_beside_its_message() {
        let mut failure = Failure::new(ErrorName::Refused, "x");
        for (nodes, text) in [
            (None, r#"{"message":"x"}"#),
            (Some(NodesRefusal::Later { left_ms: 7 }), r#"{"message":"x","left_ms":7}"#),
            (
                Some(NodesRefusal::Lists {
                    key: "k".to_owned(),
                    theirs: vec![NodeId(1)],
                    yours: Vec::new(),
                }),
                concat!(
                    r#"{"message":"x","key":"k","theirs":["00000000000000000000000000000001"],"#,
                    r#""yours":[]}"#
                ),
            ),
        ] {
            failure.nodes = nodes.map(Box::new);
            assert_eq!(serde_json::to_string(&failure).unwrap(), text);
            assert_eq!(serde_json::from_str::<Failure>(text).unwrap(), failure);
        }
    }
}
