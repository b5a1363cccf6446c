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

use super::host::Named;
use super::messages::Start;

/// The space for each of the two copies.
const COPY_BYTES: u64 = 1 << 20;

/// The bytes before a copy: its number, its length, and the checksum of both and of the copy.
const HEAD_BYTES: usize = 20;

/// The shared memory.
#[derive(Debug)]
pub(super) struct Takeover {
    file: File,
    /// The number of the copy written last.
    written: u64,
}

/// The state that another coordinator left behind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Left {
    pub(super) nodes: Vec<Named>,
    pub(super) checkpoint: Checkpoint,
    /// The child's message that the lock is held, sent or about to be sent. If this is set, the
    /// command may have begun.
    pub(super) start: Option<Start>,
}

impl Takeover {
    /// Creates empty memory (memfd_create, Linux 3.17).
    pub(super) fn create() -> io::Result<Self> {
        let file = memfd_create("canal-takeover", MFdFlags::MFD_CLOEXEC)?;
        Ok(Self { file: file.into(), written: 0 })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Saves the state that another coordinator needs. The previous copy stays until this one is
    /// complete.
    pub(super) fn write(&mut self, left: &Left) -> io::Result<()> {
        let text = serde_json::to_vec(left)?;
        let number = self.written + 1;
        let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
        if length > COPY_BYTES - HEAD_BYTES as u64 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut copy = Vec::with_capacity(HEAD_BYTES + text.len());
        copy.extend(number.to_ne_bytes());
        copy.extend(length.to_ne_bytes());
        copy.extend(checksum(number, &text).to_ne_bytes());
        copy.extend(text);
        self.file.write_all_at(&copy, number % 2 * COPY_BYTES)?;
        self.written = number;
        Ok(())
    }

    /// The state that the last coordinator saved; `None` if it saved none.
    pub(super) fn read(&mut self) -> Option<Left> {
        let copies = [self.copy(0), self.copy(1)].into_iter().flatten();
        let (number, left) = copies.max_by_key(|(number, _)| *number)?;
        self.written = number;
        Some(left)
    }

    fn copy(&self, at: u64) -> Option<(u64, Left)> {
        let mut head = [0; HEAD_BYTES];
        self.file.read_exact_at(&mut head, at * COPY_BYTES).ok()?;
        let number =
            |from: usize| head.get(from..from + 8)?.try_into().ok().map(u64::from_ne_bytes);
        let (number, length) = (number(0)?, number(8)?);
        let sum = u32::from_ne_bytes(head.get(16..20)?.try_into().ok()?);
        if number == 0 || length > COPY_BYTES {
            return None;
        }
        let mut text = vec![0; usize::try_from(length).ok()?];
        self.file.read_exact_at(&mut text, at * COPY_BYTES + HEAD_BYTES as u64).ok()?;
        let whole = checksum(number, &text) == sum;
        whole.then(|| serde_json::from_slice(&text).ok()).flatten().map(|left| (number, left))
    }
}

fn checksum(number: u64, text: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&number.to_ne_bytes());
    sum.update(text);
    sum.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use canal_core::Token;
    use canal_nodes::{Asking, Part};
    use canal_protocol::NodeId;

    fn left(token: u64) -> Left {
        let asked = Some(Asking { no_wait: false, spare: true });
        let parts = vec![Part { node: 1, lease: 3, sent: Some(token), asked }];
        let checkpoint = Checkpoint { token: Some(Token(token)), need: 2, parts };
        let nodes = vec![Named { at: 1, id: NodeId(5) }, Named { at: 0, id: NodeId(9) }];
        Left { nodes, checkpoint, start: None }
    }

    #[test]
    fn the_last_whole_copy_is_read() {
        let mut takeover = Takeover::create().unwrap();
        assert_eq!(takeover.read(), None);
        for token in 1..=5 {
            takeover.write(&left(token)).unwrap();
            assert_eq!(takeover.read(), Some(left(token)));
        }
        // The writer is killed in the middle of the sixth copy.
        takeover.file.write_all_at(b"torn", 30).unwrap();
        takeover.file.write_all_at(&6_u64.to_ne_bytes(), 0).unwrap();
        assert_eq!(takeover.read(), Some(left(5)));
        takeover.write(&left(7)).unwrap();
        assert_eq!(takeover.read(), Some(left(7)), "in place of the torn one");
    }

    #[test]
    fn the_message_to_the_child_is_there_for_each_coordinator_after_that() {
        let mut takeover = Takeover::create().unwrap();
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
