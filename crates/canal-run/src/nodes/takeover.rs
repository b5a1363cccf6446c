//! The state that a coordinator leaves for the next one, in memory that it shares with the process
//! that stays by the command.
//!
//! Invariant: a coordinator that is killed while it writes leaves its previous copy intact.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use canal_nodes::Checkpoint;
use canal_protocol::NodeId;
use canal_protocol::node_address::NodeAddress;

use super::nodes_request::Start;

/// The space for each of the two copies, with its length before it.
const COPY_BYTES: u64 = 1 << 20;

/// The shared memory: the number of the last whole copy, and two copies, of which that is one.
#[derive(Debug)]
pub(super) struct Takeover(File);

/// The state that another coordinator left behind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Left {
    /// The nodes of the plan.
    pub(super) nodes: Vec<(NodeAddress, NodeId)>,
    pub(super) checkpoint: Checkpoint,
    /// The child's message that the lock is held, sent or about to be sent. If this is set, the
    /// command may have begun.
    pub(super) start: Option<Start>,
}

impl Takeover {
    /// Creates empty memory (memfd_create, Linux 3.17).
    pub(super) fn create() -> io::Result<Self> {
        Ok(Self(memfd_create("canal-takeover", MFdFlags::MFD_CLOEXEC)?.into()))
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Saves the state that another coordinator needs. The previous copy stays until this one is
    /// complete.
    pub(super) fn write(&self, left: &Left) -> io::Result<()> {
        let text = serde_json::to_vec(left)?;
        let length = text.len() as u64;
        if length > COPY_BYTES - NUMBER_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let number = self.number(0).unwrap_or(0) + 1;
        self.0.write_all_at(&length.to_ne_bytes(), copy_at(number))?;
        self.0.write_all_at(&text, copy_at(number) + NUMBER_BYTES)?;
        // Now the copy counts. The kernel does not write half of a number when it kills the writer.
        self.0.write_all_at(&number.to_ne_bytes(), 0)
    }

    /// The state that the last coordinator saved; `None` if it saved none.
    pub(super) fn read(&self) -> Option<Left> {
        let at = copy_at(self.number(0)?);
        let mut text = vec![0; usize::try_from(self.number(at)?).ok()?];
        self.0.read_exact_at(&mut text, at + NUMBER_BYTES).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn number(&self, at: u64) -> Option<u64> {
        let mut bytes = [0; NUMBER_BYTES as usize];
        self.0.read_exact_at(&mut bytes, at).ok().map(|()| u64::from_ne_bytes(bytes))
    }
}

const NUMBER_BYTES: u64 = 8;

/// Where the copy with this number begins.
fn copy_at(number: u64) -> u64 {
    NUMBER_BYTES + number % 2 * COPY_BYTES
}

#[cfg(test)]
mod tests {
    use canal_core::Token;
    use canal_nodes::{Asking, Part};
    use canal_protocol::NodeId;

    use super::*;

    fn left(token: u64) -> Left {
        let asked = Some(Asking { no_wait: false, spare: true });
        let parts = vec![Part { node: 1, lease: 3, sent: Some(token), asked }];
        let checkpoint = Checkpoint { token: Some(Token(token)), need: 2, parts };
        let other = "ssh:web".parse().unwrap();
        let nodes = vec![(other, NodeId(5)), (NodeAddress::Local, NodeId(9))];
        Left { nodes, checkpoint, start: None }
    }

    #[test]
    fn the_last_whole_copy_is_read() {
        let takeover = Takeover::create().unwrap();
        assert_eq!(takeover.read(), None);
        for token in 1..=5 {
            takeover.write(&left(token)).unwrap();
            assert_eq!(takeover.read(), Some(left(token)));
        }
        // The writer is killed in the middle of the sixth copy.
        takeover.0.write_all_at(&60_u64.to_ne_bytes(), copy_at(6)).unwrap();
        takeover.0.write_all_at(b"torn", copy_at(6) + 30).unwrap();
        assert_eq!(takeover.read(), Some(left(5)));
        takeover.write(&left(7)).unwrap();
        assert_eq!(takeover.read(), Some(left(7)), "in place of the torn one");
    }

    #[test]
    fn the_message_to_the_child_is_there_for_each_coordinator_after_that() {
        let takeover = Takeover::create().unwrap();
        takeover.write(&left(1)).unwrap();
        assert_eq!(takeover.read().unwrap().start, None);
        let nodes = vec!["web1".to_owned()];
        let start = Start { token: Some(7), nodes, grant: None, need: 1, parts: Vec::new() };
        for token in 1..=2 {
            takeover.write(&Left { start: Some(start.clone()), ..left(token) }).unwrap();
            assert_eq!(takeover.read().unwrap().start.unwrap().token, Some(7));
        }
    }
}
