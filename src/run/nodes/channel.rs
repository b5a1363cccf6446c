//! The messages between the processes of one `canal run` over nodes: the coordinator, the parent
//! that stays by the command, and the child that becomes it. Each message is one packet.
//!
//! Invariant: the coordinator never waits for a reader.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::protocol::{ErrorName, Failure, Grant, Progress};
use crate::sys::fds;
use crate::sys::pidfd::Pidfd;

use super::host::HeldPart;

/// The longest packet.
const PACKET_BYTES: usize = 160 * 1024;

/// One end of a channel; close-on-exec.
#[derive(Debug)]
pub(super) struct End(OwnedFd);

impl From<OwnedFd> for End {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<End> for OwnedFd {
    fn from(End(fd): End) -> Self {
        fd
    }
}

/// A message from the coordinator to the child before the command starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum BeforeStart {
    /// The request waits at this node.
    Waits {
        /// The name of the node.
        name: String,
        /// The progress of its wait.
        progress: Progress,
    },
    /// The request waits until new nodes grant anything.
    New {
        /// The names of the nodes.
        names: Vec<String>,
        /// When the last of them begins to grant, in milliseconds of CLOCK_BOOTTIME.
        until: u64,
    },
    /// Print this line.
    Line(Line),
    /// The lock is held.
    Start(Start),
    /// The lock is not held, and will not be, for this reason; `None` if the caller gave up.
    End(Option<NotHeld>),
}

/// Why the lock is not held, as a daemon would answer. A [`Failure`] alone loses its name on the
/// way.
pub type NotHeld = (ErrorName, Failure);

/// A line for the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Whether `-q` hides it.
    pub is_note: bool,
    /// The text.
    pub text: String,
    /// Advice for the user.
    pub hint: Option<String>,
}

/// The lock is held.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Start {
    /// The fencing token; `None` if the requirement excludes no other command.
    pub token: Option<u64>,
    /// The names of the nodes that held it first.
    pub nodes: Vec<String>,
    /// The grant of the first of them.
    pub grant: Option<Grant>,
    /// The number of nodes that must hold it.
    pub need: usize,
    /// The parts of those nodes, in the same order. For a lease: the known state of each node,
    /// ascending by id.
    pub parts: Vec<HeldPart>,
}

/// A message from the coordinator to the parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum ToParent {
    /// Look at the deadline page: it has changed in a way that matters at once.
    Look,
    /// Print this line.
    Line(Line),
}

/// A message to the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ToCoordinator {
    /// From the child: this descriptor is my process.
    Command,
    /// From the parent: release everything.
    Stop,
    /// From the process that waits for the lock: give up its places, because no reader of its
    /// output is left.
    Abandon,
    /// From the parent: end, and leave the leases as they are, because others look after them.
    Leave,
}

/// The result of a read.
#[derive(Debug)]
pub(super) enum Received<T> {
    Message(T, Vec<OwnedFd>),
    Nothing,
    /// The other side has closed its end.
    End,
}

/// Two ends of a channel.
pub(super) fn channel() -> io::Result<(End, End)> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let (one, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
    Ok((End(one), End(other)))
}

impl End {
    /// Sends a message if there is room. Returns whether the other side may get it.
    pub(super) fn send<T: Serialize>(&self, message: &T, process: Option<&Pidfd>) -> bool {
        let Ok(text) = serde_json::to_vec(message) else { return false };
        let process = process.map(AsFd::as_fd);
        loop {
            match fds::send(self.0.as_fd(), &text, process.as_slice(), libc::MSG_DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                sent => return sent.is_ok(),
            }
        }
    }

    /// Receives the next message without waiting.
    pub(super) fn receive<T: DeserializeOwned>(&self) -> Received<T> {
        let mut buffer = vec![0; PACKET_BYTES];
        let mut received = Vec::new();
        let flags = libc::MSG_DONTWAIT;
        loop {
            let count = match fds::receive(self.0.as_fd(), &mut buffer, &mut received, flags) {
                Ok(0) => return Received::End,
                Ok(count) => count,
                Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::EINTR) => continue,
                    Some(Errno::EAGAIN) => return Received::Nothing,
                    _ => return Received::End,
                },
            };
            // Both sides run the same program.
            if let Ok(message) = serde_json::from_slice(&buffer[..count]) {
                return Received::Message(message, received);
            }
        }
    }
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
