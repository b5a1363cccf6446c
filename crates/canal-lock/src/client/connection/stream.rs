//! One connection: sends calls and reads replies, and waits for them only for a bounded time.
//!
//! Invariant: no wait takes longer than its caller allowed, whatever the daemon does.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use canal_protocol::frame::{self, Decoder, REPLY_BYTES_MAX};
use canal_protocol::{ErrorName, Failure, INTERFACE};
use canal_sys::pidfd::Pidfd;
use canal_sys::process::Activity;
use canal_sys::terminal::audience::Audience;
use canal_sys::{fds, peer, process};

use super::silence::{Limits, Owed, SLICE};
use crate::client::error::{Broken, CallOutcome};
use crate::client::{ClientError, Result};

/// How many bytes the first read takes: more than a grant needs, without a new page of memory.
const READ_BYTES: usize = 512;

/// How many bytes one read of a longer message takes.
const READ_BYTES_MAX: usize = 64 * 1024;

/// A non-blocking socket that is connected to the daemon.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    decoder: Decoder,
    buffer: Vec<u8>,
    received: Vec<OwnedFd>,
    /// The daemon closed its end before it had received the whole call.
    cut: bool,
}

/// A call, as varlink frames it.
#[derive(Serialize)]
pub(crate) struct Outgoing<'a, P> {
    method: &'a str,
    parameters: &'a P,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    oneway: bool,
}

impl<'a, P> Outgoing<'a, P> {
    /// A call of a method, whose name includes its interface.
    pub(crate) fn new(method: &'a str, parameters: &'a P, replies: Replies) -> Self {
        let (more, oneway) = (replies == Replies::More, replies == Replies::None);
        Self { method, parameters, more, oneway }
    }
}

/// A reply in the framing of varlink. The caller of `parameters` knows the type of the
/// parameters.
#[derive(Debug, Deserialize)]
pub struct Reply {
    parameters: Option<Box<RawValue>>,
    /// Whether more replies follow.
    #[serde(default)]
    pub continues: bool,
    error: Option<String>,
}

impl Reply {
    /// Whether the reply is an error.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.error.is_some()
    }

    /// The parameters of the reply, or of its error. A method without output may omit them.
    pub(crate) fn parameters(&self) -> &str {
        self.parameters.as_deref().map_or("{}", RawValue::get)
    }

    /// The error that the reply carries, if it is one.
    pub(crate) fn failure(&self) -> Option<Broken> {
        self.error.as_ref().map(|name| failure(name, self.parameters()))
    }
}

/// How many replies a call may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    /// None.
    None,
    /// One.
    One,
    /// Several; all but the last have `continues`.
    More,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            decoder: Decoder::new(REPLY_BYTES_MAX),
            buffer: Vec::new(),
            received: Vec::new(),
            cut: false,
        }
    }

    /// Sends a call. The pidfd travels with its first byte.
    pub(crate) fn send<P: Serialize>(
        &mut self,
        method: &str,
        parameters: &P,
        replies: Replies,
        owner: Option<&Pidfd>,
        limits: Limits,
    ) -> Result<(), Broken> {
        let mut qualified = String::with_capacity(INTERFACE.len() + 1 + method.len());
        qualified.push_str(INTERFACE);
        qualified.push('.');
        qualified.push_str(method);
        self.send_qualified(&qualified, parameters, replies, owner, limits)
    }

    /// Sends a call whose method includes its interface.
    pub(crate) fn send_qualified<P: Serialize>(
        &mut self,
        method: &str,
        parameters: &P,
        replies: Replies,
        owner: Option<&Pidfd>,
        limits: Limits,
    ) -> Result<(), Broken> {
        let mut bytes = Vec::with_capacity(512);
        frame::append(&Outgoing::new(method, parameters, replies), &mut bytes)?;
        let owner = owner.map(AsFd::as_fd);
        let mut left = owner.as_slice();
        let mut sent = 0;
        let mut owed = Owed::new(limits);
        while sent < bytes.len() {
            match fds::send(self.socket.as_fd(), &bytes[sent..], left, libc::MSG_DONTWAIT) {
                Ok(0) => {}
                Ok(count) => {
                    sent += count;
                    left = &[];
                    owed = Owed::new(limits);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    let waited = self.wait(PollFlags::POLLOUT, owed.patience(), None)?;
                    if owed.grow(waited, || self.activity()) {
                        return Err(self.silent().into());
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // The daemon may have sent the reason, such as too many connections.
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                    self.cut = true;
                    return Ok(());
                }
                Err(error) => return Err(Broken::from_socket(error)),
            }
        }
        Ok(())
    }

    /// Waits for the next reply. It is an error if the daemon is silent for too long.
    pub(crate) fn reply(&mut self, limits: Limits) -> Result<Reply, Broken> {
        let mut owed = Owed::new(limits);
        loop {
            match self.reply_within(owed.patience())? {
                Ok(reply) => return Ok(reply),
                Err(ReadStatus::Part) => owed = Owed::new(limits),
                Err(ReadStatus::Nothing(waited)) => {
                    if owed.grow(waited, || self.activity()) {
                        return Err(self.silent().into());
                    }
                }
            }
        }
    }

    /// The next reply, if it comes within `patience` and within one [`SLICE`].
    pub(crate) fn reply_within(
        &mut self,
        patience: Duration,
    ) -> Result<Result<Reply, ReadStatus>, Broken> {
        Ok(match self.message_within(patience.min(SLICE))? {
            Ok(message) => Ok(reply(&message)?),
            Err(status) => Err(status),
        })
    }

    /// The next reply in unparsed form, if it comes within `patience`; for
    /// [`frame::parse_last_reply`] and [`reply`].
    pub(crate) fn message_within(
        &mut self,
        patience: Duration,
    ) -> Result<Result<Vec<u8>, ReadStatus>, Broken> {
        self.message_before(patience, None)
    }

    /// Like [`Self::message_within`], but also returns when a reader of an audience leaves.
    pub(crate) fn message_before(
        &mut self,
        patience: Duration,
        audience: Option<&Audience>,
    ) -> Result<Result<Vec<u8>, ReadStatus>, Broken> {
        if let Some(message) = self.decoded()? {
            return Ok(Ok(message));
        }
        let waited = self.wait(PollFlags::POLLIN, patience, audience)?;
        // Reads even if poll(2) reported nothing, because something may have come since.
        if self.buffer.is_empty() {
            self.buffer.resize(READ_BYTES, 0);
        }
        let flags = libc::MSG_DONTWAIT;
        match fds::receive(self.socket.as_fd(), &mut self.buffer, &mut self.received, flags) {
            Ok(0) if self.cut => return Err(Broken::Disconnected(CallOutcome::Undone)),
            Ok(0) => return Err(Broken::Disconnected(CallOutcome::Unknown)),
            Ok(count) => {
                self.decoder.feed(&self.buffer[..count]);
                if count == self.buffer.len() && count < READ_BYTES_MAX {
                    self.buffer.resize(READ_BYTES_MAX, 0);
                }
            }
            Err(error) => match error.kind() {
                std::io::ErrorKind::WouldBlock => return Ok(Err(ReadStatus::Nothing(waited))),
                std::io::ErrorKind::Interrupted => {
                    return Ok(Err(ReadStatus::Nothing(Duration::ZERO)));
                }
                _ => return Err(Broken::from_socket(error)),
            },
        }
        Ok(self.decoded()?.ok_or(ReadStatus::Part))
    }

    /// Returns the bare socket. Discards what was read but not taken.
    pub(crate) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Takes the descriptors that have come so far.
    pub(crate) fn take_received(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.received)
    }

    /// The pid that the kernel reports for the listening process; with socket activation, that is
    /// the service manager. `None` if it has no pid in this pid namespace.
    pub(crate) fn pid(&self) -> Option<u32> {
        peer::credentials(self.socket.as_fd()).ok().map(|peer| peer.pid).filter(|pid| *pid != 0)
    }

    pub(crate) fn activity(&self) -> Activity {
        activity(self.pid())
    }

    /// Waits until the daemon closes the connection, for the time that it may take for a message.
    /// Returns whether it did.
    pub(crate) fn wait_closed(&mut self, limits: Limits) -> bool {
        let mut owed = Owed::new(limits);
        loop {
            match self.reply_within(owed.patience()) {
                Ok(Err(ReadStatus::Nothing(waited))) => {
                    if owed.grow(waited, || self.activity()) {
                        return false;
                    }
                }
                Ok(_) => {}
                Err(_) => return true,
            }
        }
    }

    fn decoded(&mut self) -> Result<Option<Vec<u8>>> {
        Ok(self.decoder.next_message()?.map(<[u8]>::to_vec))
    }

    /// Waits for an event, or until a reader of an audience leaves, at most `patience`. Returns how
    /// long it waited if nothing came.
    fn wait(
        &self,
        event: PollFlags,
        patience: Duration,
        audience: Option<&Audience>,
    ) -> Result<Duration, Broken> {
        let socket = PollFd::new(self.socket.as_fd(), event);
        let is_over = match audience {
            None => fds::poll_within(&mut [socket], Some(patience)),
            Some(audience) => {
                let mut polled: Vec<_> = std::iter::once(socket).chain(audience.polled()).collect();
                fds::poll_within(&mut polled, Some(patience))
            }
        };
        Ok(if is_over? { patience } else { Duration::ZERO })
    }

    fn silent(&self) -> ClientError {
        ClientError::silent(self.pid())
    }
}

/// The activity of the daemon with this pid. For a daemon within this process it is unknown,
/// because the client that asks runs too.
pub(crate) fn activity(pid: Option<u32>) -> Activity {
    pid.filter(|pid| *pid != std::process::id()).map_or(Activity::Idle, process::activity)
}

/// The outcome of a read that did not complete a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadStatus {
    /// Nothing came for this long.
    Nothing(Duration),
    /// A part of a reply came.
    Part,
}

/// Parses a reply.
pub(crate) fn reply(message: &[u8]) -> Result<Reply> {
    Ok(frame::parse(message)?)
}

/// The parameters of a reply, or the error that it carries.
pub(crate) fn parameters<T: DeserializeOwned>(reply: Reply) -> Result<T, Broken> {
    match reply.failure() {
        Some(broken) => Err(broken),
        None => read(reply.parameters()).map_err(Broken::from),
    }
}

fn read<T: DeserializeOwned>(parameters: &str) -> Result<T> {
    serde_json::from_slice(parameters.as_bytes())
        .map_err(|error| ClientError::Protocol(error.to_string()))
}

fn failure(name: &str, parameters: &str) -> Broken {
    let Some(known) = ErrorName::from_qualified(name) else {
        let parameters: Value = read(parameters).unwrap_or_default();
        let text = parameters.get("message").and_then(Value::as_str);
        let (name, message) = (name.to_owned(), text.unwrap_or(name).to_owned());
        return ClientError::UnknownError { name, message }.into();
    };
    if known == ErrorName::Stopping {
        return Broken::Disconnected(CallOutcome::Undone);
    }
    match read::<Failure>(parameters) {
        Ok(mut failure) => {
            failure.name = known;
            failure.into()
        }
        Err(error) => error.into(),
    }
}
