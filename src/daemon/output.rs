//! What is still to be written to a peer, and the descriptors that go with it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libc::MSG_DONTWAIT;

use crate::sys::fds;

/// So much room is kept for the next reply, which most need not more of.
const ROOM_KEPT: usize = 512;

/// Bytes for a peer, and the descriptors that go with them.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) bytes: Vec<u8>,
    sent: usize,
    /// Descriptors and the position of the byte that each goes with, ascending.
    pub(super) fds: Vec<(usize, Vec<OwnedFd>)>,
    /// What was to be written was dropped: the peer must get nothing more.
    pub(super) stuck: bool,
}

impl Output {
    /// How many bytes were not taken yet.
    pub(super) fn unsent(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Drops what was not written: the peer must get nothing more.
    pub(super) fn drop_all(&mut self) {
        *self = Self { stuck: true, ..Self::default() };
    }

    /// Gives the room for the next reply back.
    pub(super) fn save_memory(&mut self) {
        self.bytes.shrink_to_fit();
        self.fds.shrink_to_fit();
    }

    /// Writes what the peer takes now.
    ///
    /// # Errors
    /// The connection is of no more use.
    pub(super) fn write(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        if self.stuck {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        while self.unsent() > 0 {
            let here = self.fds.first().filter(|(at, _)| *at == self.sent);
            let skip = usize::from(here.is_some());
            let here: Vec<_> = here.iter().flat_map(|(_, fds)| fds).map(AsFd::as_fd).collect();
            let end = self.fds.get(skip).map_or(self.bytes.len(), |(at, _)| *at);
            match fds::send(socket, &self.bytes[self.sent..end], &here, MSG_DONTWAIT) {
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
            output.fds.push((output.bytes.len(), fds));
            output.bytes.extend(text.as_bytes());
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
}
