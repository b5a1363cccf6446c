//! A bare peer.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use canal::sys::pidfd::Pidfd;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde_json::{Value, json};

use crate::daemon::BOUND;
use crate::described;

/// A connection.
#[derive(Debug)]
pub(crate) struct Peer {
    stream: UnixStream,
    received: Vec<u8>,
}

impl Peer {
    pub(crate) fn connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(BOUND))?;
        Ok(Self { stream, received: Vec::new() })
    }

    /// The same connection once more, for another thread.
    pub(crate) fn another(&self) -> Self {
        Self { stream: self.stream.try_clone().unwrap(), received: Vec::new() }
    }

    /// Sends bytes as they are.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.set_write_timeout(Some(BOUND))?;
        self.stream.write_all(bytes)
    }

    /// Sends bytes until the other side takes no more for a while, or none at all; how many went.
    pub(crate) fn stuff(&mut self, bytes: &[u8]) -> usize {
        self.stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        let mut sent = 0;
        while sent < bytes.len() {
            match self.stream.write(&bytes[sent..]) {
                Ok(n) => sent += n,
                Err(_) => break,
            }
        }
        sent
    }

    /// Sends a call.
    #[track_caller]
    pub(crate) fn send(&mut self, method: &str, parameters: Value) {
        self.raw(&call(method, parameters, json!({}))).unwrap();
    }

    /// Sends a call that takes several replies.
    #[track_caller]
    pub(crate) fn send_more(&mut self, method: &str, parameters: Value) {
        self.raw(&call(method, parameters, json!({ "more": true }))).unwrap();
    }

    /// Sends a call with the pidfd of a process.
    #[track_caller]
    pub(crate) fn send_with(&mut self, method: &str, parameters: Value, owner: &Pidfd) {
        self.try_send_with(method, parameters, owner).unwrap();
    }

    /// The same, where the other side may have closed already.
    pub(crate) fn try_send_with(
        &mut self,
        method: &str,
        parameters: Value,
        owner: &Pidfd,
    ) -> io::Result<()> {
        self.send_bytes_with(&call(method, parameters, json!({})), owner)
    }

    /// Sends a call that takes several replies, with the pidfd of a process.
    #[track_caller]
    pub(crate) fn send_more_with(&mut self, method: &str, parameters: Value, owner: &Pidfd) {
        let bytes = call(method, parameters, json!({ "more": true }));
        self.send_bytes_with(&bytes, owner).unwrap();
    }

    /// Sends bytes as they are, and a pidfd.
    pub(crate) fn send_bytes_with(&mut self, bytes: &[u8], owner: &Pidfd) -> io::Result<()> {
        let fds = [owner.as_fd().as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&fds)];
        let data = [IoSlice::new(bytes)];
        let socket = self.stream.as_raw_fd();
        let sent = sendmsg::<()>(socket, &data, &rights, MsgFlags::empty(), None)?;
        self.raw(&bytes[sent..])
    }

    /// Calls, and takes what the method returns.
    #[track_caller]
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.send(method, parameters);
        self.returned(method)
    }

    /// Calls, if the other side still listens; the whole reply.
    pub(crate) fn ask(&mut self, method: &str, parameters: Value) -> Option<Value> {
        self.raw(&call(method, parameters, json!({}))).ok()?;
        self.reply()
    }

    /// What the method returned that was called last. It is what the interface says.
    #[track_caller]
    pub(crate) fn returned(&mut self, method: &str) -> Value {
        let reply = self.reply().expect("a reply");
        assert!(reply.get("error").is_none(), "{reply}");
        assert!(reply.get("continues").is_none(), "{reply}");
        let parameters = reply["parameters"].clone();
        described::check_reply(method, &parameters);
        parameters
    }

    /// A reply that others follow.
    #[track_caller]
    pub(crate) fn progress(&mut self) -> Value {
        let reply = self.reply().expect("a reply");
        assert_eq!(reply["continues"], true, "{reply}");
        reply["parameters"].clone()
    }

    /// The error that comes next: its short name and its parameters.
    #[track_caller]
    pub(crate) fn error(&mut self) -> (String, Value) {
        let reply = self.reply().expect("a reply");
        let name = reply["error"].as_str().unwrap_or_else(|| panic!("no error: {reply}"));
        described::check_error(name, &reply["parameters"]);
        let short = name.rsplit('.').next().unwrap().to_owned();
        (short, reply["parameters"].clone())
    }

    /// The next reply; `None` at the end of the connection.
    #[track_caller]
    pub(crate) fn reply(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == 0) {
                let reply = serde_json::from_slice(&self.received[..end]).unwrap();
                self.received.drain(..=end);
                return Some(reply);
            }
            let mut piece = [0; 64 * 1024];
            match self.stream.read(&mut piece) {
                Ok(0) => return None,
                Ok(n) => self.received.extend_from_slice(&piece[..n]),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no reply: {error}"),
            }
        }
    }

    /// Whether nothing has come so far.
    pub(crate) fn is_silent(&mut self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let mut piece = [0; 4096];
        let silent = match self.stream.read(&mut piece) {
            Ok(n) => {
                self.received.extend_from_slice(&piece[..n]);
                false
            }
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        self.stream.set_nonblocking(false).unwrap();
        silent && self.received.is_empty()
    }

    /// Whether the other side closed the connection; nothing is read.
    pub(crate) fn was_closed(&self) -> bool {
        let mut fds = [PollFd::new(self.stream.as_fd(), PollFlags::empty())];
        poll(&mut fds, PollTimeout::ZERO).unwrap();
        fds[0].revents().unwrap().contains(PollFlags::POLLHUP)
    }

    /// Says that nothing more will be said.
    pub(crate) fn hang_up(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }
}

/// A call as it goes over the wire.
pub(crate) fn call(method: &str, parameters: Value, mut envelope: Value) -> Vec<u8> {
    let name =
        if method.contains('.') { method.to_owned() } else { format!("io.canal.Lock.{method}") };
    envelope["method"] = name.into();
    envelope["parameters"] = parameters;
    let mut bytes = serde_json::to_vec(&envelope).unwrap();
    bytes.push(0);
    bytes
}

/// The parameters of an `Acquire` of one slot of a mutex.
pub(crate) fn mutex(tag: u128, key: &str) -> Value {
    json!({
        "tag": format!("{tag:032x}"),
        "items": [{ "key": key, "slots": 1 }],
        "command": format!("peer {tag}"),
    })
}

/// The same, not waiting.
pub(crate) fn try_mutex(tag: u128, key: &str) -> Value {
    let mut parameters = mutex(tag, key);
    parameters["wait_ms"] = 0.into();
    parameters
}

/// The same, for the process whose pidfd comes with it.
pub(crate) fn mutex_for(tag: u128, key: &str) -> Value {
    let mut parameters = mutex(tag, key);
    parameters["owner_fd"] = 0.into();
    parameters
}

/// A process that does nothing; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Idler(Child);

impl Idler {
    pub(crate) fn start() -> Self {
        let mut command = Command::new("cat");
        Self(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    /// One that has so many bytes of memory.
    pub(crate) fn large(bytes: usize) -> Self {
        let mut command = Command::new("tail");
        command.args(["-c", &(2 * bytes).to_string()]).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let piece = vec![1; 1 << 20];
        for _ in 0..bytes / piece.len() {
            child.stdin.as_mut().unwrap().write_all(&piece).unwrap();
        }
        Self(child)
    }

    /// Kills it and does not wait for its end.
    pub(crate) fn kill_unreaped(&mut self) {
        self.0.kill().unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn as_pid(&self) -> nix::unistd::Pid {
        nix::unistd::Pid::from_raw(i32::try_from(self.pid()).unwrap())
    }

    pub(crate) fn pidfd(&self) -> Pidfd {
        Pidfd::open(self.pid()).unwrap()
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Idler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
