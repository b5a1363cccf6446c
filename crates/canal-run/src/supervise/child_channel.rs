//! The messages between child and parent before the command starts.
//!
//! Each message is one packet. The child reports that it has its lock. If the lock came with a
//! deadline page, the child then waits until the parent has the page and is ready to act on it. The
//! channel ends at the exec, or with the end of the child.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use canal_lock::client::hold_monitor::Held;
use canal_sys::deadline::Reader;
use canal_sys::fds;
use canal_sys::process::child::{end_with_parent, outlive_parent};

const GRANTED: u8 = b'g';
const NOT_BEGUN: u8 = b'n';
const READY: u8 = b'r';

/// The child's end of the channel to its parent; close-on-exec.
#[derive(Debug)]
pub struct ChildChannel(OwnedFd);

/// A message of the child.
#[derive(Debug)]
pub(super) enum ChildMessage {
    /// It has its lock. The descriptors keep the hold while descendants live.
    Granted { held: Option<Held>, children: Vec<OwnedFd> },
    /// It did not become the command, and is about to end.
    NotBegun,
}

/// The parent's end.
#[derive(Debug)]
pub(super) struct Channel(OwnedFd);

pub(super) fn channel() -> io::Result<(Channel, ChildChannel)> {
    let (ours, childs) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    Ok((Channel(ours), ChildChannel(childs)))
}

impl ChildChannel {
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
        let mut word = vec![GRANTED];
        let mut descriptors = Vec::new();
        if let Some((page, token)) = held {
            word.extend(token.to_ne_bytes());
            descriptors.extend(page.descriptors());
        }
        descriptors.extend(children.map(AsFd::as_fd));
        fds::send(self.0.as_fd(), &word, &descriptors, 0)?;
        if held.is_some() {
            self.await_parent()?;
        }
        outlive_parent()
    }

    fn await_parent(&self) -> io::Result<()> {
        let mut answer = [0];
        loop {
            match fds::receive(self.0.as_fd(), &mut answer, &mut Vec::new(), 0) {
                Ok(1) if answer[0] == READY => return Ok(()),
                Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reports to the parent that the command does not begin.
    pub fn not_begun(self) {
        // A parent that has ended does not need the message.
        let _ = fds::send(self.0.as_fd(), &[NOT_BEGUN], &[], 0);
    }
}

impl Channel {
    /// The next message, if there is one; an inner `None` is the end of the channel.
    pub(super) fn receive(&self) -> io::Result<Option<Option<ChildMessage>>> {
        let mut buffer = [0; 16];
        let mut received = Vec::new();
        let count =
            match fds::receive(self.0.as_fd(), &mut buffer, &mut received, libc::MSG_DONTWAIT) {
                Ok(count) => count,
                Err(error) => {
                    return match error.raw_os_error().map(Errno::from_raw) {
                        Some(Errno::EAGAIN | Errno::EINTR) => Ok(None),
                        // The child was killed while a message to it was unread.
                        Some(Errno::ECONNRESET) => Ok(Some(None)),
                        _ => Err(error),
                    };
                }
            };
        let word = match &buffer[..count] {
            [] => return Ok(Some(None)),
            [GRANTED, token @ ..] => {
                let held = match <[u8; 8]>::try_from(token) {
                    Ok(token) if received.len() >= 2 => {
                        let (line, page) = (received.remove(1), received.remove(0));
                        let token = u64::from_ne_bytes(token);
                        Some(Held { token, page: Reader::open(page, line)? })
                    }
                    _ => None,
                };
                ChildMessage::Granted { held, children: received }
            }
            _ => ChildMessage::NotBegun,
        };
        Ok(Some(Some(word)))
    }

    /// Reports to the child that the parent is ready.
    pub(super) fn ready(&self) {
        // A child that has ended does not need the message.
        let _ = fds::send(self.0.as_fd(), &[READY], &[], 0);
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
