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

use crate::core::Token;
use crate::nodes::{Asking, Part, Standing};
use crate::protocol::NodeId;

use super::host::Named;
use super::messages::Start;

/// The space for each of the two copies.
const COPY_BYTES: u64 = 1 << 20;

/// The bytes before a copy: its number, its length, and the checksum of both and of the copy.
const HEAD_BYTES: usize = 20;

/// The shared memory.
#[derive(Debug)]
pub(super) struct Handover {
    file: File,
    /// The number of the copy written last.
    written: u64,
    /// The child's message that the lock is held, sent or about to be sent.
    start: Option<Start>,
}

/// The state that another coordinator left behind.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) nodes: Vec<Named>,
    pub(super) standing: Standing,
    /// If this is set, the command may have begun.
    pub(super) start: Option<Start>,
}

/// The fields of a [`Part`], in their order.
type KeptPart = (usize, u32, Option<u64>, Option<(bool, bool)>);

#[derive(Serialize, Deserialize)]
struct Content {
    nodes: Vec<(usize, NodeId)>,
    token: Option<u64>,
    need: usize,
    parts: Vec<KeptPart>,
    start: Option<Start>,
}

impl Handover {
    /// Creates empty memory (memfd_create, Linux 3.17).
    pub(super) fn create() -> io::Result<Self> {
        let file = memfd_create("canal-handover", MFdFlags::MFD_CLOEXEC)?;
        Ok(Self { file: file.into(), written: 0, start: None })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Marks that the command may begin from the next [`Self::write`] on.
    pub(super) fn begin(&mut self, start: Start) {
        self.start = Some(start);
    }

    /// Saves the state that another coordinator needs. The previous copy stays until this one is
    /// complete.
    pub(super) fn write(&mut self, nodes: &[Named], standing: &Standing) -> io::Result<()> {
        let content = Content {
            nodes: nodes.iter().map(|named| (named.at, named.id)).collect(),
            token: standing.token.map(|token| token.0),
            need: standing.need,
            parts: standing.parts.iter().map(as_kept).collect(),
            start: self.start.clone(),
        };
        let text = serde_json::to_vec(&content)?;
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
        let (number, content) = copies.max_by_key(|(number, _)| *number)?;
        self.written = number;
        let nodes = content.nodes.into_iter().map(|(at, id)| Named { at, id }).collect();
        let parts = content.parts.into_iter().map(|(node, lease, sent, asked)| {
            let asked = asked.map(|(no_wait, spare)| Asking { no_wait, spare });
            Part { node, lease, sent, asked }
        });
        let token = content.token.map(Token);
        let standing = Standing { token, need: content.need, parts: parts.collect() };
        self.start.clone_from(&content.start);
        Some(Left { nodes, standing, start: content.start })
    }

    fn copy(&self, at: u64) -> Option<(u64, Content)> {
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
        whole.then(|| serde_json::from_slice(&text).ok()).flatten().map(|content| (number, content))
    }
}

fn as_kept(part: &Part) -> KeptPart {
    let asked = part.asked.map(|Asking { no_wait, spare }| (no_wait, spare));
    (part.node, part.lease, part.sent, asked)
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

    fn standing(token: u64) -> Standing {
        let asked = Some(Asking { no_wait: false, spare: true });
        let parts = vec![Part { node: 1, lease: 3, sent: Some(token), asked }];
        Standing { token: Some(Token(token)), need: 2, parts }
    }

    fn named() -> Vec<Named> {
        vec![Named { at: 1, id: NodeId(5) }, Named { at: 0, id: NodeId(9) }]
    }

    fn read(handover: &mut Handover) -> Option<(Vec<Named>, Standing)> {
        handover.read().map(|left| (left.nodes, left.standing))
    }

    #[test]
    fn the_last_whole_copy_is_read() {
        let mut handover = Handover::create().unwrap();
        assert!(handover.read().is_none());
        for token in 1..=5 {
            handover.write(&named(), &standing(token)).unwrap();
            assert_eq!(read(&mut handover), Some((named(), standing(token))));
        }
        // The writer is killed in the middle of the sixth copy.
        handover.file.write_all_at(b"torn", 30).unwrap();
        handover.file.write_all_at(&6_u64.to_ne_bytes(), 0).unwrap();
        assert_eq!(read(&mut handover), Some((named(), standing(5))));
        handover.write(&named(), &standing(7)).unwrap();
        assert_eq!(read(&mut handover), Some((named(), standing(7))), "in place of the torn one");
    }

    #[test]
    fn what_the_child_was_told_is_there_for_each_coordinator_after_that() {
        let mut handover = Handover::create().unwrap();
        handover.write(&named(), &standing(1)).unwrap();
        assert!(handover.read().unwrap().start.is_none());
        let nodes = vec!["web1".to_owned()];
        let start = Start { token: Some(7), nodes, grant: None, need: 1, parts: Vec::new() };
        handover.begin(start);
        handover.write(&named(), &standing(1)).unwrap();
        assert_eq!(handover.read().unwrap().start.unwrap().token, Some(7));
        handover.write(&named(), &standing(2)).unwrap();
        assert_eq!(handover.read().unwrap().start.unwrap().token, Some(7));
    }
}
