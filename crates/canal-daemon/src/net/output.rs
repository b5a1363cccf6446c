//! Output that remains to be written to a client, and the descriptors that accompany it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libc::MSG_DONTWAIT;

use canal_sys::fds;

/// The capacity kept for the next reply, in bytes. Most replies fit into it.
const ROOM_KEPT: usize = 512;

/// Bytes for a client, and the descriptors that accompany them.
///
/// Invariant: no position of descriptors is behind the last byte, or before the first unsent byte.
#[derive(Debug, Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    sent: usize,
    /// Descriptors and the position of the byte that they accompany, ascending.
    fds: Vec<(usize, Vec<OwnedFd>)>,
    /// Output was dropped before it was written, so the client must receive nothing further.
    pub stuck: bool,
}

impl Output {
    /// Appends a message, and descriptors, which accompany its first byte.
    pub(crate) fn put(&mut self, message: Vec<u8>, fds: Vec<OwnedFd>) {
        let at = self.bytes.len();
        if !message.is_empty() && !fds.is_empty() {
            self.fds.push((at, fds));
        }
        if self.bytes.is_empty() {
            self.bytes = message;
        } else {
            self.bytes.extend_from_slice(&message);
        }
    }

    /// The number of bytes that the client has not accepted yet.
    pub(crate) fn unsent(&self) -> usize {
        self.bytes.len().saturating_sub(self.sent)
    }

    /// Drops the output that was not written. The client must receive nothing further.
    pub(crate) fn drop_all(&mut self) {
        *self = Self { stuck: true, ..Self::default() };
    }

    /// Frees the capacity that is kept for the next reply.
    pub(crate) fn save_memory(&mut self) {
        self.bytes.shrink_to_fit();
        self.fds.shrink_to_fit();
    }

    /// Writes as much as the client accepts now.
    ///
    /// # Errors
    /// The connection is no longer usable.
    pub(crate) fn write(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        if self.stuck {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        while self.unsent() > 0 {
            let here = self.fds.first().filter(|(at, _)| *at == self.sent);
            let skip = usize::from(here.is_some());
            let here: Vec<_> = here.iter().flat_map(|(_, fds)| fds).map(AsFd::as_fd).collect();
            let end = self.fds.get(skip).map_or(self.bytes.len(), |(at, _)| *at);
            let Some(piece) = self.bytes.get(self.sent..end).filter(|piece| !piece.is_empty())
            else {
                // A client must not receive less than was decided, so the connection is closed
                // instead.
                tracing::error!("a descriptor has no byte to carry it");
                return Err(io::ErrorKind::InvalidData.into());
            };
            match fds::send(socket, piece, &here, MSG_DONTWAIT) {
                Ok(n) => {
                    self.sent += n;
                    if skip == 1 && n > 0 {
                        self.fds.remove(0);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.bytes.shrink_to(ROOM_KEPT);
        self.sent = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn descriptors_go_with_the_bytes_that_they_belong_to() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let mut output = Output::default();
        for (text, count) in [("three", 3), ("one", 1), ("two", 2)] {
            let fds = (0..count).map(|_| null()).collect();
            output.put(text.as_bytes().to_vec(), fds);
        }
        output.write(ours.as_fd()).unwrap();
        let mut heard = Vec::new();
        let mut buffer = [0; 64];
        while heard.iter().map(|(text, _): &(String, _)| text.len()).sum::<usize>() < 11 {
            let mut received = Vec::new();
            let count = fds::receive(theirs.as_fd(), &mut buffer, &mut received, 0).unwrap();
            heard.push((String::from_utf8_lossy(&buffer[..count]).into_owned(), received.len()));
        }
        let expected = [("three", 3), ("one", 1), ("two", 2)];
        assert_eq!(heard, expected.map(|(text, count)| (text.to_owned(), count)));
        assert_eq!(output.unsent(), 0);
    }

    #[test]
    fn descriptors_of_a_message_without_bytes_go_nowhere() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let null = || vec![OwnedFd::from(std::fs::File::open("/dev/null").unwrap())];
        let mut output = Output::default();
        output.put(b"first".to_vec(), Vec::new());
        output.put(Vec::new(), null());
        output.put(b"last".to_vec(), Vec::new());
        output.write(ours.as_fd()).unwrap();
        let (mut buffer, mut received) = ([0; 64], Vec::new());
        let count = fds::receive(theirs.as_fd(), &mut buffer, &mut received, 0).unwrap();
        assert_eq!((&buffer[..count], received.len()), (&b"firstlast"[..], 0));
    }
}
