//! Wrappers of commands, and the deadline page that they are given.

use serde::{Deserialize, Serialize};

use crate::protocol::Tag;

/// What stands by a command while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wrapper {
    /// Nothing: the asker becomes the command. With the grant its connection has done its part, and
    /// is closed if no other call was sent ahead. Where that is not enough, because the daemon works
    /// over an engine, the answer is [`SupervisorRequired`](crate::protocol::ErrorName::SupervisorRequired), and nothing was
    /// asked for.
    Exec,
    /// A parent of the asker, which ends the command in time if the lock is lost. Over an engine the
    /// grant comes with the descriptors of a deadline page.
    Supervised,
}

/// `DeadlinePage`: asks for the deadline page of a request that is held. A wrapper whose page is not
/// written any more asks the next daemon of its host, which may have taken the hold over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlinePageQuery {
    /// The request's tag.
    pub tag: Tag,
    /// The token that it was granted with: if the daemon ended its process because the lock was
    /// lost, it says so ([`ErrorName::LeaseLost`](crate::protocol::ErrorName::LeaseLost), with the reason).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
}

/// The reply to [`DeadlinePageQuery`]: indices among the descriptors sent with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlinePageFound {
    /// Of the deadline page.
    pub deadline_fd: u32,
    /// Of its line.
    pub liveness_fd: u32,
}
