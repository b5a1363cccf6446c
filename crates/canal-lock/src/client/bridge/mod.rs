//! `canal bridge`: connects two descriptors to the daemon's socket for a client on another machine.
//!
//! An empty message is a *beat*, a sign of life, which the bridge answers with another beat. The
//! bridge ends if the client is silent for the TTL of its lease: sshd notices a dead network only
//! after hours.
//!
//! Invariant: the bridge passes a message on as a whole or not at all.

mod traffic;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use canal_protocol::frame::{self, Decoder, MESSAGE_BYTES_MAX, REPLY_BYTES_MAX};
use canal_protocol::place::Place;
use canal_protocol::{NODES_INTERFACE, Restrict};
use canal_sys::clock::boottime_ms;
use canal_sys::fds;
use canal_text::duration::stated;

use crate::client::connection::silence::Limits;
use crate::client::connection::stream::{Connection, Replies, parameters};
use crate::client::error::Broken;
use crate::client::start_daemon::open;
use crate::client::start_daemon::starts::Starts;
use crate::client::{ClientError, Options};
use traffic::{Passing, Traffic};

/// The most bytes that one call reads.
const READ_BYTES: usize = 64 * 1024;

/// A write of at most this many bytes does not block on a pipe that poll(2) calls writable.
const WRITE_BYTES: usize = 4096;

/// While this many bytes wait to be written, the bridge stops reading for the same direction.
const PENDING_MAX: usize = 1 << 20;

/// The longest sleep, because the clock of poll(2) stands still while the machine is suspended.
/// After a suspend, a bridge ends late by up to this time.
const SLEEP_MS_MAX: u64 = 10_000;

/// How long the daemon may take to answer a client's last calls after the client's end.
const LAST_ANSWERS_MS: u64 = 5000;

/// The message that represents a beat.
const BEAT: &[u8] = &[0];

/// The message that the daemon receives for a beat: a call without effect and without an answer.
const WORD: &[u8] = br#"{"method":"io.canal.Nodes.Identify","oneway":true}"#;

/// Why a bridge ended before its client did.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// The daemon could not be reached, or refused to restrict the connection.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The daemon is older than the calls to which the client would be restricted.
    #[error("the daemon is older than the installed `canal` and does not support nodes")]
    OlderDaemon,
    /// The daemon went away while it owed an answer, or while a grant depended on the connection.
    #[error("the daemon ended during the call")]
    DaemonGone,
    /// The client was silent for too long.
    #[error("the other side sent nothing for {}", stated(*.0))]
    Silent(Duration),
    /// A message is too large, or a system call failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Connects the client that writes to `input` and reads from `output` to the daemon of a place,
/// until the client ends. Starts a daemon if necessary. With `keys`, the client may only use leases
/// at nodes, and only under these keys.
///
/// # Errors
/// See [`BridgeError`].
pub fn bridge(
    place: &Place,
    options: &Options,
    keys: Option<&[String]>,
    input: BorrowedFd<'_>,
    output: BorrowedFd<'_>,
) -> Result<(), BridgeError> {
    let attach = |again: bool| attach(place, options, keys, again);
    let socket = attach(false)?;
    let bridge = Bridge {
        input: Some(input),
        output,
        socket: Some(socket),
        from_client: Decoder::new(MESSAGE_BYTES_MAX),
        from_daemon: Decoder::new(REPLY_BYTES_MAX),
        to_client: Pending::default(),
        to_daemon: Pending::default(),
        traffic: Traffic::new(),
        heard_at: boottime_ms(),
        passed_at: 0,
    };
    bridge.run(&attach)
}

/// A new connection, restricted to what `keys` allows.
fn attach(
    place: &Place,
    options: &Options,
    keys: Option<&[String]>,
    again: bool,
) -> Result<OwnedFd, BridgeError> {
    // A daemon that dies while it owes an answer ends the bridge, so each attachment has its own
    // count.
    let starts = &mut Starts::default();
    let mut connection = match again {
        false => open::connect_first(place, options, starts)?.connection,
        true => open::connect_again(place, options, starts)?,
    };
    if let Some(keys) = keys {
        restrict(&mut connection, options, keys)?;
    }
    Ok(connection.into_socket())
}

fn restrict(
    connection: &mut Connection,
    options: &Options,
    keys: &[String],
) -> Result<(), BridgeError> {
    let limits = Limits::from(options);
    let method = format!("{NODES_INTERFACE}.Restrict");
    let asked = Restrict { keys: keys.to_vec() };
    let answered = connection
        .send_qualified(&method, &asked, Replies::One, None, limits)
        .and_then(|()| connection.reply(limits))
        .and_then(parameters::<serde_json::Value>);
    match answered {
        Ok(_) => Ok(()),
        Err(Broken::Failed(error)) if error.is_unknown_method() => Err(BridgeError::OlderDaemon),
        Err(Broken::Failed(error)) => Err(error.into()),
        Err(Broken::Disconnected(_)) => Err(BridgeError::DaemonGone),
    }
}

/// The bytes that wait to be written.
#[derive(Debug, Default)]
struct Pending {
    bytes: Vec<u8>,
    written: usize,
}

impl Pending {
    fn add(&mut self, message: &[u8]) {
        self.bytes.extend_from_slice(message);
        self.bytes.push(0);
    }

    fn is_empty(&self) -> bool {
        self.written == self.bytes.len()
    }

    fn is_full(&self) -> bool {
        self.bytes.len() - self.written >= PENDING_MAX
    }

    fn left(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    fn wrote(&mut self, count: usize) {
        self.written += count;
        if self.is_empty() {
            *self = Self::default();
        }
    }
}

struct Bridge<'a> {
    /// `None` once the client has ended.
    input: Option<BorrowedFd<'a>>,
    output: BorrowedFd<'a>,
    /// `None` after the daemon went away, until the client sends its next message.
    socket: Option<OwnedFd>,
    from_client: Decoder,
    from_daemon: Decoder,
    to_client: Pending,
    to_daemon: Pending,
    traffic: Traffic,
    /// When the client last sent something, by CLOCK_BOOTTIME.
    heard_at: u64,
    /// When the bridge last sent something to the daemon.
    passed_at: u64,
}

/// Opens a connection. The argument is `true` if there has been one before.
type Attach<'a> = &'a dyn Fn(bool) -> Result<OwnedFd, BridgeError>;

impl Bridge<'_> {
    fn run(mut self, attach: Attach<'_>) -> Result<(), BridgeError> {
        loop {
            if self.is_over() {
                return Ok(());
            }
            let left = self.left_ms();
            if left == 0 {
                let silence = Duration::from_millis(self.traffic.silence_ms());
                return match self.input {
                    Some(_) => Err(BridgeError::Silent(silence)),
                    None => Ok(()),
                };
            }
            let ready = self.wait(left.min(SLEEP_MS_MAX))?;
            // First, so that no call is sent to a daemon that has gone away.
            if ready.socket {
                self.read_daemon()?;
            }
            if ready.input && !self.read_client(attach)? {
                self.input = None;
                self.heard_at = boottime_ms();
            }
            self.write_daemon()?;
            if ready.output && !self.write_client()? {
                // The client no longer reads.
                return Ok(());
            }
        }
    }

    /// Whether nothing remains to be done after the client's end.
    fn is_over(&self) -> bool {
        let owed = self.traffic.only_short_answers_owed() && self.socket.is_some();
        self.input.is_none() && self.to_client.is_empty() && !owed
    }

    /// How long the client may still be silent, or how long its last answers may still take.
    fn left_ms(&self) -> u64 {
        let most = match self.input {
            Some(_) => self.traffic.silence_ms(),
            None => LAST_ANSWERS_MS,
        };
        most.saturating_sub(boottime_ms().saturating_sub(self.heard_at))
    }

    fn wait(&self, timeout_ms: u64) -> Result<Ready, BridgeError> {
        let mut polled = Vec::with_capacity(3);
        let reads = self.input.filter(|_| !self.to_daemon.is_full() && !self.to_client.is_full());
        if let Some(input) = reads {
            polled.push(PollFd::new(input, PollFlags::POLLIN));
        }
        if let Some(socket) = &self.socket {
            let mut events = PollFlags::empty();
            events.set(PollFlags::POLLIN, !self.to_client.is_full());
            events.set(PollFlags::POLLOUT, !self.to_daemon.is_empty());
            polled.push(PollFd::new(socket.as_fd(), events));
        }
        let writes = match self.to_client.is_empty() {
            // poll(2) reports the end of the reader even if no event is requested.
            true => PollFlags::empty(),
            false => PollFlags::POLLOUT,
        };
        polled.push(PollFd::new(self.output, writes));
        fds::poll_within(&mut polled, Some(Duration::from_millis(timeout_ms)))?;
        let mut ready = polled.iter().map(|fd| fd.any().unwrap_or(false));
        Ok(Ready {
            input: reads.is_some() && ready.next().unwrap_or(false),
            socket: self.socket.is_some() && ready.next().unwrap_or(false),
            output: ready.next().unwrap_or(false),
        })
    }

    /// Reads from the client. Returns whether it is still there.
    fn read_client(&mut self, attach: Attach<'_>) -> Result<bool, BridgeError> {
        let Some(input) = self.input else { return Ok(false) };
        let mut buffer = vec![0; READ_BYTES];
        let count = match nix::unistd::read(input, &mut buffer) {
            Ok(0) => return Ok(false),
            Ok(count) => count,
            Err(Errno::EINTR | Errno::EAGAIN) => return Ok(true),
            Err(Errno::ECONNRESET | Errno::EIO) => return Ok(false),
            Err(error) => return Err(io::Error::from(error).into()),
        };
        self.heard_at = boottime_ms();
        self.from_client.feed(&buffer[..count]);
        while let Some(message) = self.from_client.next_message().map_err(too_large)? {
            match self.traffic.client_said(message) {
                Passing::Beat => {
                    self.to_client.bytes.extend_from_slice(BEAT);
                    let silent_ms = self.heard_at.saturating_sub(self.passed_at);
                    if self.traffic.word_after_ms().is_some_and(|after_ms| silent_ms >= after_ms) {
                        self.to_daemon.add(WORD);
                        self.passed_at = self.heard_at;
                    }
                }
                Passing::Call => {
                    self.to_daemon.add(message);
                    self.passed_at = self.heard_at;
                    if self.socket.is_none() {
                        self.socket = Some(attach(true)?);
                    }
                }
            }
        }
        Ok(true)
    }

    fn read_daemon(&mut self) -> Result<(), BridgeError> {
        let Some(socket) = &self.socket else { return Ok(()) };
        let mut buffer = vec![0; READ_BYTES];
        // Descriptors are closed because they mean nothing on another machine.
        let mut received = Vec::new();
        let flags = libc::MSG_DONTWAIT;
        match fds::receive(socket.as_fd(), &mut buffer, &mut received, flags) {
            Ok(0) => return self.lose_daemon(),
            Ok(count) => self.from_daemon.feed(&buffer[..count]),
            Err(error) => {
                return match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
                    _ => self.lose_daemon(),
                };
            }
        }
        while let Some(message) = self.from_daemon.next_message().map_err(too_large)? {
            self.traffic.daemon_said(message);
            self.to_client.add(message);
        }
        Ok(())
    }

    fn lose_daemon(&mut self) -> Result<(), BridgeError> {
        self.socket = None;
        if !self.traffic.may_reattach() {
            return Err(BridgeError::DaemonGone);
        }
        // A call without an answer may be lost here, just as it may be lost with the daemon.
        self.to_daemon = Pending::default();
        self.from_daemon = Decoder::new(REPLY_BYTES_MAX);
        Ok(())
    }

    fn write_daemon(&mut self) -> Result<(), BridgeError> {
        let Some(socket) = &self.socket else { return Ok(()) };
        while !self.to_daemon.is_empty() {
            match fds::send(socket.as_fd(), self.to_daemon.left(), &[], libc::MSG_DONTWAIT) {
                Ok(count) => self.to_daemon.wrote(count),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => break,
                    // The bridge first reads what the daemon sent before its end.
                    _ => {
                        self.to_daemon = Pending::default();
                        return Ok(());
                    }
                },
            }
        }
        Ok(())
    }

    /// Writes to the client. Returns whether it still reads.
    fn write_client(&mut self) -> Result<bool, BridgeError> {
        if self.to_client.is_empty() {
            // The event can only be the end of the reader.
            return Ok(!has_hung_up(self.output));
        }
        let left = self.to_client.left();
        match nix::unistd::write(self.output, &left[..left.len().min(WRITE_BYTES)]) {
            Ok(count) => self.to_client.wrote(count),
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(Errno::EPIPE | Errno::ECONNRESET | Errno::EIO) => return Ok(false),
            Err(error) => return Err(io::Error::from(error).into()),
        }
        Ok(true)
    }
}

/// The directions that are ready without waiting.
#[derive(Clone, Copy, Debug)]
struct Ready {
    input: bool,
    socket: bool,
    output: bool,
}

fn has_hung_up(output: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(output, PollFlags::empty())];
    let gone = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;
    poll(&mut polled, PollTimeout::ZERO).is_ok()
        && polled[0].revents().is_some_and(|events| events.intersects(gone))
}

fn too_large(error: frame::FrameError) -> BridgeError {
    BridgeError::Io(io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}
