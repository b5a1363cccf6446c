//! A channel between two processes of one program. Each message is one packet, and may carry
//! descriptors.
//!
//! Invariant: the sender never waits for the reader.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use serde::Serialize;
use serde::de::DeserializeOwned;

use canal_sys::fds;

/// The longest packet.
const PACKET_BYTES: usize = 160 * 1024;

/// One end of a channel; close-on-exec.
#[derive(Debug)]
pub struct End(pub OwnedFd);

/// The result of a read.
#[derive(Debug)]
pub enum Received<T> {
    /// A message, and the descriptors that came with it.
    Message(T, Vec<OwnedFd>),
    /// None is there.
    Nothing,
    /// The other side has closed its end.
    End,
}

/// The two ends of a new channel.
///
/// # Errors
/// No descriptors are left.
pub fn channel() -> io::Result<(End, End)> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let (one, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
    Ok((End(one), End(other)))
}

impl End {
    /// Sends a message with descriptors if there is room. Returns whether the other side may get
    /// it.
    pub fn send<T: Serialize>(&self, message: &T, descriptors: &[BorrowedFd<'_>]) -> bool {
        let Ok(text) = serde_json::to_vec(message) else { return false };
        loop {
            match fds::send(self.0.as_fd(), &text, descriptors, libc::MSG_DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                sent => return sent.is_ok(),
            }
        }
    }

    /// Waits for the next message, or for the end.
    pub fn next<T: DeserializeOwned>(&self) -> Received<T> {
        loop {
            match self.receive() {
                Received::Nothing => _ = fds::wait_readable([self.as_fd()], None),
                received => return received,
            }
        }
    }

    /// Receives the next message without waiting.
    pub fn receive<T: DeserializeOwned>(&self) -> Received<T> {
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
