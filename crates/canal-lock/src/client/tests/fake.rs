//! A fake daemon that a test scripts, and a place for it.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{Options, Start};
use canal_protocol::frame::{self, Decoder, MESSAGE_BYTES_MAX};
use canal_protocol::paths::{Place, Rule};
use canal_sys::fds;
use canal_sys::rerun::BOUND;

/// A private place for one test. Dropping it removes its files.
pub(super) struct Scratch {
    pub(super) dir: TempDir,
    pub(super) place: Place,
}

impl Scratch {
    pub(super) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let place = Place {
            socket: dir.path().join("canal.sock"),
            dir: dir.path().to_owned(),
            rule: Rule::Given,
            uid: 0.into(),
            stores: OnceLock::new(),
        };
        Self { dir, place }
    }

    pub(super) fn listen(&self) -> UnixListener {
        UnixListener::bind(&self.place.socket).unwrap()
    }

    /// Runs a daemon in parallel to the test. Joining it yields its result.
    pub(super) fn daemon<T: Send + 'static>(
        &self,
        act: impl FnOnce(UnixListener) -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let listener = self.listen();
        std::thread::spawn(move || act(listener))
    }
}

/// A client that starts no daemon and gives up quickly.
pub(super) fn impatient() -> Options {
    let mut options = patient();
    options.limits.idle = Duration::from_millis(200);
    options
}

/// A client that starts no daemon.
pub(super) fn patient() -> Options {
    Options::from(Start::Never)
}

/// The daemon's end of a connection.
pub(super) struct Peer {
    stream: UnixStream,
    decoder: Decoder,
    pub(super) received: Vec<OwnedFd>,
}

pub(super) fn accept(listener: &UnixListener) -> Peer {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    Peer { stream, decoder: Decoder::new(MESSAGE_BYTES_MAX), received: Vec::new() }
}

impl Peer {
    /// The next call: its method without the interface, and its parameters.
    pub(super) fn call(&mut self) -> (String, Value) {
        loop {
            if let Some(message) = self.decoder.next_message().unwrap() {
                let call: Value = frame::parse(message).unwrap();
                let method = call["method"].as_str().unwrap();
                let method = method.strip_prefix("io.canal.Lock.").unwrap().to_owned();
                return (method, call["parameters"].clone());
            }
            let mut buffer = [0; 4096];
            let socket = self.stream.as_fd();
            let count = fds::receive(socket, &mut buffer, &mut self.received, 0).unwrap();
            assert_ne!(count, 0, "the client hung up");
            self.decoder.feed(&buffer[..count]);
        }
    }

    pub(super) fn reply(&mut self, parameters: Value) {
        self.say(&json!({ "parameters": parameters }));
    }

    pub(super) fn go_on(&mut self, parameters: Value) {
        self.say(&json!({ "parameters": parameters, "continues": true }));
    }

    pub(super) fn refuse(&mut self, name: &str, parameters: Value) {
        self.say(&json!({ "error": name, "parameters": parameters }));
    }

    pub(super) fn reply_with(&mut self, parameters: Value, fds: &[BorrowedFd<'_>]) {
        let mut bytes = Vec::new();
        frame::append(&json!({ "parameters": parameters }), &mut bytes).unwrap();
        let sent = fds::send(self.stream.as_fd(), &bytes, fds, 0).unwrap();
        assert_eq!(sent, bytes.len());
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Waits until there is something to read, but does not read it.
    pub(super) fn wait_unread(&self) {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut fds = [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut fds, PollTimeout::from(10_000_u16)).unwrap(), 1);
    }

    /// Waits until the client closes the connection.
    pub(super) fn wait_closed(mut self) {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).unwrap();
    }

    fn say(&mut self, message: &Value) {
        let mut bytes = Vec::new();
        frame::append(message, &mut bytes).unwrap();
        self.raw(&bytes);
    }
}

/// A grant of one slot.
pub(super) fn grant() -> Value {
    json!({
        "keys": [{
            "key": "k",
            "acquired": 1,
            "slots": [{ "slot": 0, "bucket": null }],
            "mode": "counted",
        }],
        "token": 9,
        "owner": { "pid": 1, "command": "x" },
        "session": "s1",
    })
}

/// A progress message for a waiter.
pub(super) fn progress(position: u64) -> Value {
    json!({
        "key": "k",
        "position": position,
        "waiting": 2,
        "reason": "1 of 1 slots held",
        "holders": [],
    })
}

/// An empty state of the locks from a daemon with this pid.
pub(super) fn status(pid: u32) -> Value {
    json!({
        "daemon": { "pid": pid, "version": "0", "socket": "/s", "since": "x", "uid": 0 },
        "keys": [],
    })
}
