//! The daemon without its own process: a test decides when it does its turns.

use std::io::Write;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::calls::call::ConnId;
use crate::cluster::journal_or_engine::Decide;
use crate::config::effective::EffectiveConfig;
use crate::config::file::Config;
use crate::config::sections_and_defaults::SocketAccess;
use crate::options::Options;
use crate::runtime_dir::claim::Claim;
use crate::runtime_dir::instance_lock::ClaimError;
use crate::server::Server;
use crate::store::recover::recover;
use canal_core::{HostId, Item, Owner, Request, Tag};
use canal_protocol::paths::Place;
use canal_sys::fds;
use canal_sys::peer::Credentials;
use canal_sys::pidfd::Pidfd;
use canal_sys::process::{Origin, RunState, run_state};
use canal_sys::rerun::wait_until;

mod forgotten_calls;
pub(super) mod fuzz;
pub(super) mod idle_host;
pub(super) mod jobserver;
pub(super) mod other_users;
pub(super) mod recovering;
pub(super) mod reload;
mod restart;
pub(super) mod turns;
pub(super) mod waiters_not_back;

/// More turns than any test needs.
const TURNS_MAX: usize = 10_000;

/// A request for these items that asks for nothing else, and does not wait.
pub(crate) fn plain_request(
    tag: Tag,
    host: HostId,
    (owner, uid): (Owner, u32),
    items: Vec<Item>,
) -> Request {
    Request { tag, host, owner, uid, items, ..Request::default() }
}

/// A daemon in a separate directory.
struct World {
    server: Server,
    place: Place,
    _folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("canal-turns-").tempdir().unwrap();
        std::fs::DirBuilder::new().mode(0o700).create(folder.path().join("run")).unwrap();
        Self::within(folder, "")
    }

    /// The next daemon of the directory.
    fn again(self) -> Self {
        self.again_with("")
    }

    /// The next daemon of the directory, with this configuration.
    fn again_with(self, config: &str) -> Self {
        drop(self.server);
        Self::within(self._folder, config)
    }

    fn within(folder: tempfile::TempDir, config: &str) -> Self {
        let dir = folder.path().join("run");
        let uid = canal_sys::process::user::geteuid().as_raw();
        let place = Place::find(Some(&dir.join("canal.sock")), uid).unwrap();
        let claim = claim(&place);
        let path = folder.path().join("canal.toml");
        std::fs::write(&path, config).unwrap();
        // Without settings, the daemon runs without a file.
        let paths = if config.is_empty() { Vec::new() } else { vec![path] };
        let config = Config::read(&paths).unwrap();
        let origin = Origin::read().unwrap();
        let recovered = recover(&place, &config, &origin, false).unwrap();
        let options = Options { idle_exit_s: Some(0), ..Options::at(place.clone()) };
        let effective = EffectiveConfig::new(config, place.stores().config.clone(), 1024);
        let home = claim.open(None, SocketAccess::default()).unwrap();
        let decide = (Decide::new(recovered.ledger, None), recovered.notes);
        let server = crate::start::server(options, home, effective, &origin, decide);
        let server = server.unwrap();
        Self { server, place, _folder: folder }
    }

    fn connect(&self) -> Peer {
        let stream = UnixStream::connect(&self.place.socket).unwrap();
        stream.set_nonblocking(true).unwrap();
        Peer { stream, received: Vec::new(), fds: Vec::new() }
    }

    /// Connects a client of a user whose only group has the same number.
    fn connect_as(&mut self, uid: u32) -> (ConnId, Peer) {
        let (ours, stream) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        stream.set_nonblocking(true).unwrap();
        let peer = Credentials { pid: std::process::id(), uid, gid: uid };
        let id = self.server.conns.open(ours.into(), peer, 0, None);
        (id, Peer { stream, received: Vec::new(), fds: Vec::new() })
    }

    /// Does turns until no work remains.
    fn turn(&mut self) {
        for _ in 0..TURNS_MAX {
            if !self.server.has_work() && !self.server.conns.wait(Some(Duration::ZERO)) {
                return;
            }
            self.server.turn().unwrap();
            assert_eq!(self.server.forgotten_call(), None);
        }
        panic!("there is always something to do");
    }

    /// Sends a call, and reads the reply.
    #[track_caller]
    fn call(&mut self, peer: &mut Peer, method: &str, parameters: &Value) -> Value {
        peer.send(&call(method, parameters), &[]);
        self.turn();
        peer.reply().expect("a reply")
    }

    /// Takes a lease whose handle is the tag.
    #[track_caller]
    fn lease(&mut self, tag: u128, key: &str) {
        let mut peer = self.connect();
        let mut parameters = mutex(tag, key);
        parameters["lease"] = json!({ "handle": hex(tag), "ttl_ms": 600_000 });
        granted(&self.call(&mut peer, "Acquire", &parameters));
        self.call(&mut peer, "Confirm", &json!({ "tag": hex(tag) }));
    }

    /// Makes another process hold a key.
    #[track_caller]
    fn hold(&mut self, tag: u128, key: &str) -> Holder {
        let holder = Holder::start();
        let mut peer = self.connect();
        let mut parameters = mutex(tag, key);
        parameters["owner_fd"] = 0.into();
        peer.send(&call("Acquire", &parameters), &[holder.pidfd().as_fd()]);
        self.turn();
        granted(&peer.reply().expect("a reply"));
        self.call(&mut peer, "Confirm", &json!({ "tag": hex(tag) }));
        holder
    }
}

/// Claims a place for the next daemon.
fn claim(place: &Place) -> Claim {
    let mut claim = Claim::new(place, false);
    wait_until("what other tests start has let go of the earlier daemon's lock", || {
        if matches!(claim, Err(ClaimError::Running { .. })) {
            claim = Claim::new(place, false);
        }
        !matches!(claim, Err(ClaimError::Running { .. }))
    });
    claim.unwrap()
}

/// A client.
struct Peer {
    stream: UnixStream,
    received: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Peer {
    /// Sends as much as the socket accepts; `false` if the other side has closed it.
    fn send(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        let sent = fds::send(self.stream.as_fd(), bytes, fds, 0);
        match sent {
            Ok(sent) => self.stream.write_all(&bytes[sent..]).is_ok(),
            Err(_) => false,
        }
    }

    /// The next complete reply, if any.
    #[track_caller]
    fn reply(&mut self) -> Option<Value> {
        self.read();
        let end = self.received.iter().position(|byte| *byte == 0)?;
        let reply = serde_json::from_slice(&self.received[..end]).expect("JSON");
        self.received.drain(..=end);
        Some(reply)
    }

    /// Reads the available data; `false` at the end of the connection.
    fn read(&mut self) -> bool {
        let mut piece = vec![0; 64 * 1024];
        loop {
            match fds::receive(self.stream.as_fd(), &mut piece, &mut self.fds, 0) {
                Ok(0) => return false,
                Ok(n) => self.received.extend_from_slice(&piece[..n]),
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
    }
}

impl Drop for Peer {
    /// Ends the connection, even while the child of another test still has a copy of the socket.
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// A process that the test can end.
struct Holder(Child);

impl Holder {
    fn start() -> Self {
        let mut command = Command::new("cat");
        Self(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn pidfd(&self) -> Pidfd {
        Pidfd::open(self.0.id()).unwrap()
    }

    /// Stops the process, and waits until it has stopped.
    fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        wait_until("it is stopped", || run_state(self.0.id()) == RunState::Stopped);
    }

    fn go_on(&self) {
        self.signal(Signal::SIGCONT);
        wait_until("it goes on", || run_state(self.0.id()) == RunState::Running);
    }

    fn signal(&self, signal: Signal) {
        nix::sys::signal::kill(Pid::from_raw(self.0.id().cast_signed()), signal).unwrap();
    }

    /// Ends the process, and waits for it as its parent.
    fn end(mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hex(number: u128) -> String {
    format!("{number:032x}")
}

fn call(method: &str, parameters: &Value) -> Vec<u8> {
    let call = json!({ "method": format!("io.canal.Lock.{method}"), "parameters": parameters });
    let mut bytes = call.to_string().into_bytes();
    bytes.push(0);
    bytes
}

/// The parameters of an `Acquire` of a mutex.
fn mutex(tag: u128, key: &str) -> Value {
    json!({ "tag": hex(tag), "items": [{ "key": key, "slots": 1 }], "command": "test" })
}

/// The same, but it does not wait.
fn try_mutex(tag: u128, key: &str) -> Value {
    let mut parameters = mutex(tag, key);
    parameters["wait_ms"] = 0.into();
    parameters
}

#[track_caller]
fn granted(reply: &Value) {
    assert!(reply["parameters"]["token"].is_u64(), "{reply}");
}
