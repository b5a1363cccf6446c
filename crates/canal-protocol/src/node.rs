//! A node, as its user names it, and why it cannot be used.

use std::{fmt, io};

use crate::node_address::NodeAddress;

/// A node of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The user's word for the node: its name, or else its address.
    pub name: String,
    /// The address of the node.
    pub address: NodeAddress,
    /// The program on the node, if it is not the `canal` in its PATH.
    pub canal: Option<String>,
}

impl Node {
    /// A node that has no name.
    pub fn at(address: NodeAddress) -> Self {
        Self { name: address.to_string(), address, canal: None }
    }
}

/// Why a node is unusable or unreachable, or why it refused something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct NodeFailure {
    /// Whether another attempt is useless until a user changes something.
    pub permanent: bool,
    /// The problem, as a clause in lower case.
    pub what: String,
    /// Advice for the user.
    pub hint: Option<String>,
}

impl NodeFailure {
    /// A failure that may go away by itself.
    pub fn passing(what: impl Into<String>) -> Self {
        Self { permanent: false, what: what.into(), hint: None }
    }

    /// A failure that stays until a user changes something.
    pub fn permanent(what: impl fmt::Display) -> Self {
        Self { permanent: true, what: what.to_string(), hint: None }
    }

    /// Adds advice.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// A system call on this side failed.
impl From<io::Error> for NodeFailure {
    fn from(error: io::Error) -> Self {
        Self::permanent(error)
    }
}
