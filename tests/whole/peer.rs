//! A bare peer of the daemon: JSON and NUL over the socket, nothing of the client library.

use std::io::{ErrorKind, IoSlice, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use canal::sys::pidfd::Pidfd;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{ControlMessage, MsgFlags, getsockopt, sendmsg};
use serde_json::{Value, json};
use std::os::fd::AsFd as _;

use crate::process::BOUND;
use crate::world::World;

/// A connection to a world's daemon.
#[derive(Debug)]
pub(crate) struct Peer {
    stream: UnixStream,
    received: Vec<u8>,
}

impl Peer {
    /// Connects, if a daemon listens there.
    pub(crate) fn try_connect_to(socket: &Path) -> Option<Self> {
        let stream = UnixStream::connect(socket).ok()?;
        stream.set_read_timeout(Some(BOUND)).ok()?;
        Some(Self { stream, received: Vec::new() })
    }

    #[track_caller]
    pub(crate) fn connect(world: &World) -> Self {
        let socket = world.spread.socket(world.spread.next());
        Self::try_connect_to(&socket).expect("a daemon listens")
    }

    /// Whether the daemon's process is stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        let peer = getsockopt(&self.stream, PeerCredentials).unwrap();
        crate::process::state(peer.pid()) == Some('T')
    }

    /// Calls a method and takes its reply; `None` if the connection breaks.
    pub(crate) fn call(&mut self, method: &str, parameters: &Value) -> Option<Value> {
        self.send(method, parameters, false, None)?;
        self.reply()
    }

    /// Sends a call, with `owner`'s pidfd beside it.
    pub(crate) fn send(
        &mut self,
        method: &str,
        parameters: &Value,
        more: bool,
        owner: Option<&Pidfd>,
    ) -> Option<()> {
        let mut call = json!({ "method": format!("io.canal.Lock.{method}") });
        if !parameters.is_null() {
            call["parameters"] = parameters.clone();
        }
        if more {
            call["more"] = true.into();
        }
        let mut bytes = serde_json::to_vec(&call).unwrap();
        bytes.push(0);
        let Some(owner) = owner else { return self.stream.write_all(&bytes).ok() };
        let fds = [owner.as_fd().as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&fds)];
        let data = [IoSlice::new(&bytes)];
        let sent =
            sendmsg::<()>(self.stream.as_raw_fd(), &data, &rights, MsgFlags::empty(), None).ok()?;
        self.stream.write_all(&bytes[sent..]).ok()
    }

    /// Asks for a lock; `owner`, if given, shall own it.
    pub(crate) fn ask(&mut self, tag: u128, items: &Value, more: bool, owner: Option<&Pidfd>) {
        let mut parameters =
            json!({ "tag": format!("{tag:032x}"), "items": items, "command": "a bare peer" });
        if owner.is_some() {
            parameters["owner_fd"] = 0.into();
        }
        self.send("Acquire", &parameters, more, owner).expect("the daemon listens");
    }

    /// The next reply; `None` at the end of the connection.
    pub(crate) fn reply(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == 0) {
                let reply = serde_json::from_slice(&self.received[..end]).unwrap();
                self.received.drain(..=end);
                return Some(reply);
            }
            let mut piece = [0; 16 * 1024];
            match self.stream.read(&mut piece) {
                Ok(0) => return None,
                Ok(n) => self.received.extend_from_slice(&piece[..n]),
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return None,
                // A read with a time-out is interrupted when the machine is frozen.
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => panic!("no reply: {e}"),
            }
        }
    }

    /// Sends bytes as they are.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.set_write_timeout(Some(std::time::Duration::from_millis(200)))?;
        self.stream.write_all(bytes)
    }
}
