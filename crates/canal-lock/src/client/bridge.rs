//! `canal bridge`: connects two descriptors to the daemon's socket for a client on another machine.
//!
//! An empty message is a *beat*, a sign of life, which the bridge answers with another beat. The
//! bridge ends if the client is silent for the TTL of its lease: sshd notices a dead network only
//! after hours.
//!
//! Invariants: the bridge passes a message on as a whole or not at all. A connection to the daemon
//! may be replaced behind the client's back only if nothing depends on it: the daemon owes no
//! answer, and no grant ends with it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use serde::Deserialize;
use serde_json::Value;

use canal_protocol::frame::{Decoder, MESSAGE_BYTES_MAX};
use canal_protocol::paths::Place;
use canal_protocol::{NODES_INTERFACE, Restrict};
use canal_sys::clock::boottime_ms;
use canal_sys::fds;
use canal_text::duration::stated_ms;

use super::connection::options::Options;
use super::connection::start_daemon::{Starts, connect};
use super::connection::stream::{Connection, Read, Replies, parameters};
use super::error::{ClientError, Result};

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

/// The failure when the daemon goes away during a call.
const DAEMON_GONE: &str = "the daemon ended during the call";

/// Why a bridge ended before its client did.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// The daemon could not be reached, or refused to restrict the connection.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The daemon is older than the calls to which the client would be restricted.
    #[error("the daemon is older than the installed `canal` and does not support nodes")]
    OlderDaemon,
    /// The daemon went away while it owed an answer, or while a grant depended on the connection;
    /// or the client was silent for too long, a message is too large, or a system call failed.
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
    let (input, daemon) = (Some(input), Some(attach(false)?));
    let (from_client, heard_at) = (Decoder::new(MESSAGE_BYTES_MAX), boottime_ms());
    let (to_client, traffic, passed_at) = Default::default();
    let mut bridge =
        Bridge { input, output, daemon, from_client, to_client, traffic, heard_at, passed_at };
    while !bridge.is_over() {
        // How long the client may still be silent, or how long its last answers may still take.
        let is_there = bridge.input.is_some();
        let most = if is_there { bridge.traffic.silence_ms() } else { LAST_ANSWERS_MS };
        let left = most.saturating_sub(boottime_ms().saturating_sub(bridge.heard_at));
        if left == 0 {
            let silence = stated_ms(bridge.traffic.silence_ms());
            let silent = || broken(format!("the other side sent nothing for {silence}"));
            return bridge.input.map_or(Ok(()), |_| Err(silent()));
        }
        let [input, daemon, output] = bridge.wait(left.min(SLEEP_MS_MAX))?;
        // First, so that no call is sent to a daemon that has gone away.
        if daemon {
            bridge.read_daemon()?;
        }
        if input && !bridge.read_client(&attach)? {
            bridge.input = None;
            bridge.heard_at = boottime_ms();
        }
        if output && !bridge.write_client()? {
            // The client no longer reads.
            return Ok(());
        }
    }
    Ok(())
}

/// A new connection, restricted to what `keys` allows.
fn attach(
    place: &Place,
    options: &Options,
    keys: Option<&[String]>,
    again: bool,
) -> Result<Connection, BridgeError> {
    // A daemon that dies while it owes an answer ends the bridge, so each attachment has its own
    // count.
    let starts = &mut Starts::default();
    let mut connection = connect(place, options, again, starts)?;
    let Some(keys) = keys else { return Ok(connection) };
    let limits = options.limits;
    let method = format!("{NODES_INTERFACE}.Restrict");
    let answered = connection
        .send(&method, &Restrict { keys: keys.to_vec() }, Replies::One, None, limits)
        .and_then(|()| connection.reply(limits))
        .and_then(parameters::<Value>);
    match answered {
        Ok(_) => Ok(connection),
        Err(error) if error.is_unknown_method() => Err(BridgeError::OlderDaemon),
        Err(ClientError::Gone(_)) => Err(broken(DAEMON_GONE)),
        Err(error) => Err(error.into()),
    }
}

struct Bridge<'a> {
    /// `None` once the client has ended.
    input: Option<BorrowedFd<'a>>,
    output: BorrowedFd<'a>,
    /// `None` after the daemon went away, until the client sends its next message.
    daemon: Option<Connection>,
    from_client: Decoder,
    /// The bytes that wait to be written to the client.
    to_client: VecDeque<u8>,
    traffic: Traffic,
    /// When the client last sent something, by CLOCK_BOOTTIME.
    heard_at: u64,
    /// When the bridge last sent something to the daemon.
    passed_at: u64,
}

/// Opens a connection. The argument is `true` if there has been one before.
type Attach<'a> = &'a dyn Fn(bool) -> Result<Connection, BridgeError>;

impl Bridge<'_> {
    /// Whether nothing remains to be done after the client's end.
    fn is_over(&self) -> bool {
        let owed = self.traffic.only_short_answers_owed() && self.daemon.is_some();
        self.input.is_none() && self.to_client.is_empty() && !owed
    }

    /// Whether the client's input, the daemon and the client's output are ready without waiting.
    fn wait(&self, timeout_ms: u64) -> Result<[bool; 3], BridgeError> {
        let is_full = self.to_client.len() >= PENDING_MAX;
        let unsent = self.daemon.as_ref().map_or(0, |daemon| daemon.pending.len());
        let input = self.input.filter(|_| unsent < PENDING_MAX && !is_full);
        let mut replies = PollFlags::empty();
        replies.set(PollFlags::POLLIN, !is_full);
        // poll(2) reports the end of the reader even if no event is requested.
        let mut room = PollFlags::empty();
        room.set(PollFlags::POLLOUT, !self.to_client.is_empty());
        let fds = [
            input.map(|input| PollFd::new(input, PollFlags::POLLIN)),
            self.daemon.as_ref().map(|daemon| daemon.polled(replies)),
            Some(PollFd::new(self.output, room)),
        ];
        let mut polled: Vec<_> = fds.iter().flatten().cloned().collect();
        fds::poll_within(&mut polled, Some(Duration::from_millis(timeout_ms)))?;
        let mut ready = polled.iter().map(|fd| fd.any().unwrap_or(false));
        Ok(fds.map(|fd| fd.is_some() && ready.next().unwrap_or(false)))
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
        while let Some(message) = self.from_client.next_message().map_err(broken)? {
            let silent_ms = self.heard_at.saturating_sub(self.passed_at);
            let passed = if self.traffic.client_said(message) {
                if self.daemon.is_none() {
                    self.daemon = Some(attach(true)?);
                }
                message
            } else {
                self.to_client.extend(BEAT);
                if self.traffic.word_after_ms().is_none_or(|after_ms| silent_ms < after_ms) {
                    continue;
                }
                WORD
            };
            if let Some(daemon) = &mut self.daemon {
                daemon.pending.extend(passed);
                daemon.pending.push(0);
                daemon.flush();
                self.passed_at = self.heard_at;
            }
        }
        Ok(true)
    }

    fn read_daemon(&mut self) -> Result<(), BridgeError> {
        while let Some(daemon) = &mut self.daemon {
            daemon.flush();
            match daemon.read(Duration::ZERO, None) {
                Ok(Read::Message(message)) => {
                    // Descriptors are closed because they mean nothing on another machine.
                    drop(daemon.take_received());
                    self.traffic.daemon_said(&message);
                    self.to_client.extend(message);
                    self.to_client.push_back(0);
                }
                Ok(Read::Part) => {}
                Ok(Read::Nothing(_)) => break,
                Err(ClientError::Protocol(what)) => return Err(broken(what)),
                // A call without an answer may be lost here, as it may be lost with the daemon.
                Err(_) if self.traffic.may_reattach() => self.daemon = None,
                Err(_) => return Err(broken(DAEMON_GONE)),
            }
        }
        Ok(())
    }

    /// Writes to the client. Returns whether it still reads.
    fn write_client(&mut self) -> Result<bool, BridgeError> {
        if self.to_client.is_empty() {
            // The event can only be the end of the reader.
            return Ok(fds::events_now(self.output, PollFlags::empty()).is_empty());
        }
        let (left, _) = self.to_client.as_slices();
        match nix::unistd::write(self.output, &left[..left.len().min(WRITE_BYTES)]) {
            Ok(count) => drop(self.to_client.drain(..count)),
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(Errno::EPIPE | Errno::ECONNRESET | Errno::EIO) => return Ok(false),
            Err(error) => return Err(io::Error::from(error).into()),
        }
        if self.to_client.is_empty() {
            // Releases the memory of a large message.
            self.to_client = VecDeque::new();
        }
        Ok(true)
    }
}

fn broken(what: impl ToString) -> BridgeError {
    BridgeError::Io(io::Error::other(what.to_string()))
}

/// How long a client that has not yet asked for a lease may be silent, in milliseconds.
const SILENCE_MS: u64 = 60_000;

/// What the bridge must know about the messages that pass through it. No I/O and no clock.
#[derive(Debug, Default)]
struct Traffic {
    /// The calls that the daemon has not answered yet, in the order of the calls.
    owed: VecDeque<Call>,
    /// Whether the client has asked for a lease and not confirmed it, so that the lease ends with
    /// the connection.
    collecting: bool,
    /// The TTL of the lease that the client last asked for, in milliseconds.
    ttl_ms: Option<u64>,
}

/// The kinds of calls that the bridge distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Collect,
    ConfirmAt,
    /// The daemon answers it repeatedly until it is cancelled.
    Watch,
    Other,
}

#[derive(Deserialize)]
struct ReplySeen {
    #[serde(default)]
    continues: bool,
    error: Option<String>,
}

impl Traffic {
    /// Records a whole message of the client, without its terminator. Returns whether it is a call,
    /// which the bridge passes to the daemon, and not a beat.
    fn client_said(&mut self, message: &[u8]) -> bool {
        if message.is_empty() {
            return false;
        }
        // The daemon answers a message that it does not understand with an error, which is one
        // reply.
        let seen: Value = serde_json::from_slice(message).unwrap_or_default();
        let method = seen["method"].as_str().and_then(|it| it.strip_prefix(NODES_INTERFACE));
        let call = match method {
            Some(".Collect") => Call::Collect,
            Some(".ConfirmAt") => Call::ConfirmAt,
            _ if seen["more"] == true => Call::Watch,
            _ => Call::Other,
        };
        if call == Call::Collect {
            self.collecting = true;
            self.ttl_ms = seen["parameters"]["ttl_ms"].as_u64().or(self.ttl_ms);
        }
        if seen["oneway"] != true {
            self.owed.push_back(call);
        }
        true
    }

    /// Records a whole message of the daemon, without its terminator.
    fn daemon_said(&mut self, message: &[u8]) {
        let seen: Option<ReplySeen> = serde_json::from_slice(message).ok();
        if seen.as_ref().is_some_and(|seen| seen.continues) {
            return;
        }
        let failed = seen.is_none_or(|seen| seen.error.is_some());
        match self.owed.pop_front() {
            Some(Call::Collect) if failed => self.collecting = false,
            // If the grant failed, nothing is left to lose; if it is confirmed, it no longer
            // depends on the connection.
            Some(Call::ConfirmAt) => self.collecting = false,
            _ => {}
        }
    }

    /// Whether another connection to the daemon may replace the present one.
    fn may_reattach(&self) -> bool {
        self.owed.is_empty() && !self.collecting
    }

    /// How long the daemon may go without a message from the client, in milliseconds. It ends an
    /// unconfirmed grant if it receives none for the TTL.
    fn word_after_ms(&self) -> Option<u64> {
        let has_grant = self.collecting && self.owed.is_empty();
        has_grant.then_some(self.silence_ms() / 4)
    }

    /// Whether the daemon owes answers, and all of them come soon.
    fn only_short_answers_owed(&self) -> bool {
        let is_short = |call: &Call| !matches!(call, Call::Collect | Call::Watch);
        !self.owed.is_empty() && self.owed.iter().all(is_short)
    }

    /// How long the client may be silent, in milliseconds.
    fn silence_ms(&self) -> u64 {
        self.ttl_ms.unwrap_or(SILENCE_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(traffic: &mut Traffic, method: &str, more: &str) {
        let message = format!("{{\"method\":\"io.canal.Nodes.{method}\"{more}}}");
        assert!(traffic.client_said(message.as_bytes()));
    }

    #[test]
    fn a_connection_is_replaced_only_where_nothing_depends_on_it() {
        let mut traffic = Traffic::default();
        assert!(traffic.may_reattach());
        call(&mut traffic, "Identify", "");
        assert!(!traffic.may_reattach(), "an answer is owed");
        assert!(traffic.only_short_answers_owed());
        traffic.daemon_said(b"{\"parameters\":{}}");
        assert!(traffic.may_reattach());
        call(&mut traffic, "Collect", ",\"more\":true,\"parameters\":{\"ttl_ms\":20000}");
        assert!(!traffic.only_short_answers_owed());
        traffic.daemon_said(b"{\"continues\":true,\"parameters\":{}}");
        assert!(!traffic.may_reattach(), "it waits");
        assert_eq!(traffic.word_after_ms(), None);
        traffic.daemon_said(b"{\"parameters\":{}}");
        assert!(!traffic.may_reattach(), "its grant ends with the connection");
        assert_eq!(traffic.word_after_ms(), Some(5_000));
        call(&mut traffic, "ConfirmAt", "");
        traffic.daemon_said(b"{\"parameters\":{}}");
        assert!(traffic.may_reattach());
        assert_eq!(traffic.word_after_ms(), None);
        call(&mut traffic, "Report", ",\"oneway\":true");
        assert!(traffic.may_reattach(), "nothing is owed");
    }

    #[test]
    fn a_watch_has_no_last_answer_to_wait_for() {
        let mut traffic = Traffic::default();
        call(&mut traffic, "Watch", ",\"more\":true");
        assert!(!traffic.only_short_answers_owed());
        traffic.daemon_said(b"{\"continues\":true,\"parameters\":{}}");
        assert!(!traffic.may_reattach(), "the next daemon does not know of it");
    }

    #[test]
    fn a_refused_lease_keeps_no_connection() {
        let mut traffic = Traffic::default();
        call(&mut traffic, "Collect", "");
        traffic.daemon_said(b"{\"error\":\"io.canal.Lock.Refused\",\"parameters\":{}}");
        assert!(traffic.may_reattach());
    }

    #[test]
    fn what_is_no_call_is_answered_once_all_the_same() {
        let mut traffic = Traffic::default();
        assert!(traffic.client_said(b"junk"));
        assert!(!traffic.may_reattach());
        traffic.daemon_said(b"{\"error\":\"x\"}");
        assert!(traffic.may_reattach());
        traffic.daemon_said(b"junk");
        assert!(traffic.may_reattach(), "more answers than calls");
    }

    #[test]
    fn a_client_may_be_silent_for_the_ttl_of_its_lease() {
        let mut traffic = Traffic::default();
        assert_eq!(traffic.silence_ms(), 60_000);
        assert!(!traffic.client_said(b""));
        call(&mut traffic, "Collect", ",\"parameters\":{\"ttl_ms\":20000}");
        assert_eq!(traffic.silence_ms(), 20_000);
        call(&mut traffic, "Collect", "");
        assert_eq!(traffic.silence_ms(), 20_000);
    }
}
