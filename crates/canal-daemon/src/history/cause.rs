//! The effect of a change on the requests that it ends.

use std::sync::Arc;

use canal_core::{Change, FrameId, Release, Request, Withdrawal};
use canal_sys::peer::Credentials;

/// The effect of a change on the requests that it ends.
#[derive(Clone, Debug)]
pub(crate) enum Cause {
    /// A client makes this request, which may be refused immediately.
    Request(Arc<Request>),
    /// The owner releases.
    Release,
    /// Another client releases by force. Contains its user and process, if it called this daemon.
    Forced(Option<(u32, u32)>),
    /// The process of this frame has ended.
    End(FrameId),
    Withdraw(Withdrawal),
    Expire,
    /// A host is gone.
    HostGone,
    Other,
}

impl Cause {
    /// The effect of a change. `by`: the client that asked this daemon for it.
    pub(crate) fn of(change: &Change, by: Option<&Credentials>) -> Self {
        match change {
            Change::Request(request) => Self::Request(Arc::clone(request)),
            Change::Release(Release::Hold { forced: true, .. }) => {
                Self::Forced(by.map(|peer| (peer.uid, peer.pid)))
            }
            Change::Release(_) => Self::Release,
            Change::End { frame } => Self::End(*frame),
            Change::Withdraw { why, .. } => Self::Withdraw(*why),
            Change::Expire { .. } => Self::Expire,
            Change::HostGone { .. } => Self::HostGone,
            _ => Self::Other,
        }
    }
}
