//! The processes that accompany commands, and their deadline page.

use serde::{Deserialize, Serialize};

use crate::Tag;

/// The process that accompanies a command while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wrapper {
    /// None: the caller becomes the command by exec. It does not need its connection after the
    /// grant, so the daemon closes it if no other call was sent ahead. Over an engine that is not
    /// enough: the daemon answers
    /// [`SupervisorRequired`](crate::ErrorName::SupervisorRequired), and requests
    /// nothing.
    Exec,
    /// A parent of the caller, the supervisor, which ends the command in time if the lock is lost.
    /// Over an engine, the grant contains the descriptors of a deadline page.
    Supervised,
}

/// `DeadlinePage`: asks for the deadline page of a hold. A supervisor whose page has lost its
/// writer asks the next daemon of its host, which may have taken over the hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlinePageQuery {
    /// The request's tag.
    pub tag: Tag,
    /// The token of the grant. If the daemon ended the process because the lock was lost, the reply
    /// is [`ErrorName::LeaseLost`](crate::ErrorName::LeaseLost) with the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
}

/// The reply to [`DeadlinePageQuery`]: indices among the descriptors sent with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlinePageFound {
    /// The index of the deadline page.
    pub deadline_fd: u32,
    /// The index of its liveness pipe.
    pub liveness_fd: u32,
}
