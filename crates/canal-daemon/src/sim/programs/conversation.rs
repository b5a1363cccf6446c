//! A client's connection to the daemon of its machine.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, connect, socket};
use serde::Serialize;
use serde_json::{Value, json};

use crate::sim::machine::{Machine, Serial};
use canal_protocol::INTERFACE;
use canal_sys::fds;

/// A message of the daemon.
#[derive(Debug)]
pub(in crate::sim) enum Word {
    /// A reply with more replies to follow.
    Progress,
    /// The final reply to the call.
    Reply(Value),
    /// An error as the final reply to the call: its name without the interface, and its parameters.
    Failure(String, Value),
    Closed,
}

#[derive(Debug)]
pub(in crate::sim) struct Conversation {
    stream: UnixStream,
    received: Vec<u8>,
    /// Descriptors that arrived with replies.
    pub(in crate::sim) fds: Vec<OwnedFd>,
    is_closed: bool,
}

/// Numbers the sockets of all runs.
static SOCKETS: AtomicU64 = AtomicU64::new(0);

impl Conversation {
    /// Connects a process. Returns `None` if no daemon listens.
    pub(in crate::sim) fn open(machine: &Machine, client: Serial, at: &Path) -> Option<Self> {
        let name = format!("canal-sim-{}-{}", std::process::id(), number());
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        bind(fd.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).unwrap()).unwrap();
        machine.bound(name.as_bytes(), client);
        connect(fd.as_raw_fd(), &UnixAddr::new(at).unwrap()).ok()?;
        let stream = UnixStream::from(fd);
        Some(Self { stream, received: Vec::new(), fds: Vec::new(), is_closed: false })
    }

    pub(in crate::sim) fn send(
        &mut self,
        method: &str,
        parameters: &impl Serialize,
        more: bool,
        fds: &[BorrowedFd<'_>],
    ) {
        let method = format!("{INTERFACE}.{method}");
        let call = json!({ "method": method, "parameters": parameters, "more": more });
        let mut bytes = call.to_string().into_bytes();
        bytes.push(0);
        let sent = fds::send(self.stream.as_fd(), &bytes, fds, 0);
        let rest = sent.map(|sent| self.stream.write_all(&bytes[sent..]));
        self.is_closed |= !matches!(rest, Ok(Ok(())));
    }

    /// The next message of the daemon.
    pub(in crate::sim) fn next(&mut self) -> Option<Word> {
        self.read();
        let Some(end) = self.received.iter().position(|byte| *byte == 0) else {
            return self.is_closed.then_some(Word::Closed);
        };
        let mut reply: Value = serde_json::from_slice(&self.received[..end]).unwrap();
        self.received.drain(..=end);
        let parameters = reply["parameters"].take();
        if let Some(error) = reply["error"].as_str() {
            let name = error.rsplit('.').next().unwrap_or_default();
            return Some(Word::Failure(name.to_owned(), parameters));
        }
        let continues = reply["continues"].as_bool().unwrap_or_default();
        Some(if continues { Word::Progress } else { Word::Reply(parameters) })
    }

    fn read(&mut self) {
        let mut piece = [0; 16 * 1024];
        loop {
            match fds::receive(self.stream.as_fd(), &mut piece, &mut self.fds, 0) {
                Ok(0) => return self.is_closed = true,
                Ok(count) => self.received.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(_) => return self.is_closed = true,
            }
        }
    }
}

fn number() -> u64 {
    SOCKETS.fetch_add(1, Ordering::Relaxed)
}
