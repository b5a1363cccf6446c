//! The messages between child and parent before the command starts.
//!
//! The child reports that it has its lock. If the lock came with a deadline page, the child then
//! waits until the parent has the page and is ready to act on it. The channel ends at the exec, or
//! with the end of the child.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use serde::{Deserialize, Serialize};

use canal_lock::client::channel::{End, Received};
use canal_lock::client::hold_monitor::Held;
use canal_sys::deadline::Reader;
use canal_sys::process::child::{end_with_parent, outlive_parent};

/// The child's end of the channel to its parent; close-on-exec.
#[derive(Debug)]
pub struct ChildChannel(End);

/// A message of the child.
#[derive(Serialize, Deserialize)]
pub(super) enum ChildMessage {
    /// It has its lock. With a token, the lock can be lost, and the first two descriptors are its
    /// deadline page. The others keep the hold while descendants live.
    Granted { token: Option<u64> },
    /// It did not become the command, and is about to end.
    NotBegun,
}

/// The answer of the parent: it is ready to end the command in time.
#[derive(Serialize, Deserialize)]
pub(super) struct Ready;

impl ChildChannel {
    pub(super) fn new(end: End) -> Self {
        Self(end)
    }

    /// Makes the child end with its parent until [`Self::granted`]: a place in the queue must not
    /// outlast the job that waits.
    ///
    /// # Errors
    /// The parent has already ended.
    pub(super) fn end_with_parent(&self) -> io::Result<()> {
        end_with_parent(self.0.as_fd())
    }

    /// Reports to the parent that the lock is held and the command starts. `children` is the
    /// descriptor that keeps the hold; the parent gets it too. `held` is the page and the token of
    /// a hold that can be lost. In that case, returns once the parent is ready to end the command
    /// in time.
    ///
    /// From then on, the end of the parent no longer ends this process: the command keeps its lock.
    /// If the parent is killed before, this process ends with it, and the daemon frees the lock.
    ///
    /// # Errors
    /// The parent has ended.
    pub fn granted(
        &self,
        children: Option<&OwnedFd>,
        held: Option<(&Reader, u64)>,
    ) -> io::Result<()> {
        let page = held.iter().flat_map(|(page, _)| page.descriptors());
        let descriptors: Vec<_> = page.chain(children.map(AsFd::as_fd)).collect();
        let granted = ChildMessage::Granted { token: held.map(|(_, token)| token) };
        let is_sent = self.0.send(&granted, &descriptors);
        let is_ready = || matches!(self.0.next::<Ready>(), Received::Message(Ready, _));
        if !is_sent || held.is_some() && !is_ready() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        outlive_parent()
    }

    /// Reports to the parent that the command does not begin.
    pub fn not_begun(self) {
        // A parent that has ended does not need the message.
        self.0.send(&ChildMessage::NotBegun, &[]);
    }
}

/// Takes the hold that can be lost out of the descriptors of [`ChildMessage::Granted`].
pub(super) fn held(token: Option<u64>, descriptors: &mut Vec<OwnedFd>) -> io::Result<Option<Held>> {
    let Some(token) = token.filter(|_| descriptors.len() >= 2) else { return Ok(None) };
    let (line, page) = (descriptors.remove(1), descriptors.remove(0));
    Ok(Some(Held { token, page: Reader::open(page, line)? }))
}
