//! Wrappers of commands, and the deadline page that they are given.

use serde::{Deserialize, Serialize};

use crate::protocol::Tag;

/// What stands beside a command while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wrapper {
    /// Nothing: the caller becomes the command by exec. Its connection is not needed after the
    /// grant, and is closed if no other call was sent ahead. Where a daemon works over an engine
    /// that is not enough: the answer is
    /// [`SupervisorRequired`](crate::protocol::ErrorName::SupervisorRequired), and nothing was
    /// requested.
    Exec,
    /// A parent of the caller, the supervisor, which ends the command in time if the lock is lost.
    /// Over an engine the grant comes with the descriptors of a deadline page.
    Supervised,
}

/// `DeadlinePage`: asks for the deadline page of a hold. A supervisor whose page has lost its
/// writer asks the next daemon of its host, which may have taken the hold over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlinePageQuery {
    /// The request's tag.
    pub tag: Tag,
    /// The token of the grant. If the daemon ended the process because the lock was lost, the reply
    /// is [`ErrorName::LeaseLost`](crate::protocol::ErrorName::LeaseLost) with the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
}

/// The reply to [`DeadlinePageQuery`]: indices among the descriptors sent with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlinePageFound {
    /// Of the deadline page.
    pub deadline_fd: u32,
    /// Of its liveness pipe.
    pub liveness_fd: u32,
}
