//! One connection: opens it, sends calls and reads replies, and waits only for a bounded time.
//!
//! Invariant: no wait takes longer than its caller allowed, whatever the daemon does.

use std::borrow::Cow;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::options::Options;
use super::time_limits::{Limits, Owed};
use crate::client::error::{CallOutcome, ClientError, Result};
use canal_protocol::frame::{self, Decoder, REPLY_BYTES_MAX};
use canal_protocol::paths::Place;
use canal_protocol::{ErrorName, Failure, INTERFACE};
use canal_sys::deadline_page::Reader;
use canal_sys::pidfd::Pidfd;
use canal_sys::private_dir::with_c_str;
use canal_sys::process::{self, Activity};
use canal_sys::terminal::output::OutputReaders;
use canal_sys::{fds, peer};

/// How many bytes the first read takes: more than a grant needs, without a new page of memory.
const READ_BYTES: usize = 512;

/// How many bytes one read of a longer message takes.
const READ_BYTES_MAX: usize = 64 * 1024;

/// A socket that is connected to the daemon, or to a bridge that leads to one.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    decoder: Decoder,
    buffer: Vec<u8>,
    /// The bytes that wait to be written by [`Self::flush`], to which the caller appends messages.
    pub(crate) pending: Vec<u8>,
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
    /// The parameters of the reply, or of its error. A method without output may omit them.
    pub(crate) fn parameters(&self) -> &str {
        self.parameters.as_deref().map_or("{}", RawValue::get)
    }

    /// The error that the reply carries, if it is one.
    pub(crate) fn failure(&self) -> Option<ClientError> {
        let name = self.error.as_ref()?;
        let Some(known) = ErrorName::from_qualified(name) else {
            let parameters: Value = read(self.parameters()).unwrap_or_default();
            let text = parameters.get("message").and_then(Value::as_str);
            let (name, message) = (name.clone(), text.unwrap_or(name).to_owned());
            return Some(ClientError::UnknownError { name, message });
        };
        if known == ErrorName::Stopping {
            return Some(ClientError::Gone(CallOutcome::Undone));
        }
        let failure = read::<Failure>(self.parameters());
        Some(failure.map_or_else(|error| error, |it| Failure { name: known, ..it }.into()))
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
        let (buffer, pending, received) = Default::default();
        let decoder = Decoder::new(REPLY_BYTES_MAX);
        Self { socket, decoder, buffer, pending, received, cut: false }
    }

    /// Sends a call. A method without an interface is one of [`INTERFACE`]. The pidfd travels with
    /// the first byte.
    pub(crate) fn send<P: Serialize>(
        &mut self,
        method: &str,
        parameters: &P,
        replies: Replies,
        owner: Option<&Pidfd>,
        limits: Limits,
    ) -> Result<()> {
        let method = match method.contains('.') {
            true => Cow::Borrowed(method),
            false => Cow::Owned(format!("{INTERFACE}.{method}")),
        };
        let mut bytes = Vec::with_capacity(512);
        frame::append(&Outgoing::new(&method, parameters, replies), &mut bytes)?;
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
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let waited = self.wait(PollFlags::POLLOUT, owed.patience(), None)?;
                    if owed.grow(waited, || self.activity()) {
                        return Err(ClientError::silent(self.pid()));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The daemon may have sent the reason, such as too many connections.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    self.cut = true;
                    return Ok(());
                }
                Err(error) => return Err(ClientError::from_socket(error)),
            }
        }
        Ok(())
    }

    /// Writes as much as possible without waiting. A later read finds the end of the connection,
    /// after everything that came before it.
    pub(crate) fn flush(&mut self) {
        while !self.pending.is_empty() {
            match fds::send(self.socket.as_fd(), &self.pending, &[], libc::MSG_DONTWAIT) {
                Ok(count) => drop(self.pending.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.pending.clear(),
            }
        }
        // Releases the memory of a large message.
        self.pending = Vec::new();
    }

    /// The socket with these events to poll, and that there is room if bytes wait to be written.
    pub(crate) fn polled(&self, mut events: PollFlags) -> PollFd<'_> {
        events.set(PollFlags::POLLOUT, !self.pending.is_empty());
        PollFd::new(self.socket.as_fd(), events)
    }

    /// Waits for the next reply. It is an error if the daemon is silent for too long.
    pub(crate) fn reply(&mut self, limits: Limits) -> Result<Reply> {
        let mut owed = Owed::new(limits);
        loop {
            match self.read(owed.patience(), None)? {
                Read::Message(message) => return Ok(frame::parse(&message)?),
                Read::Part => owed = Owed::new(limits),
                Read::Nothing(waited) => {
                    if owed.grow(waited, || self.activity()) {
                        return Err(ClientError::silent(self.pid()));
                    }
                }
            }
        }
    }

    /// Reads the next reply in unparsed form, if it comes within this `time` and before a reader of
    /// the output leaves; for [`frame::parse_last_reply`] and [`frame::parse`].
    pub(crate) fn read(&mut self, time: Duration, output: Option<&OutputReaders>) -> Result<Read> {
        if let Some(message) = self.decoder.next_message()? {
            return Ok(Read::Message(message.to_vec()));
        }
        let waited = self.wait(PollFlags::POLLIN, time, output)?;
        // Reads even if poll(2) reported nothing, because something may have come since.
        if self.buffer.is_empty() {
            self.buffer.resize(READ_BYTES, 0);
        }
        let flags = libc::MSG_DONTWAIT;
        match fds::receive(self.socket.as_fd(), &mut self.buffer, &mut self.received, flags) {
            Ok(0) if self.cut => return Err(ClientError::Gone(CallOutcome::Undone)),
            Ok(0) => return Err(ClientError::Gone(CallOutcome::Unknown)),
            Ok(count) => {
                self.decoder.feed(&self.buffer[..count]);
                if count == self.buffer.len() && count < READ_BYTES_MAX {
                    self.buffer.resize(READ_BYTES_MAX, 0);
                }
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(Read::Nothing(waited)),
                io::ErrorKind::Interrupted => return Ok(Read::Nothing(Duration::ZERO)),
                _ => return Err(ClientError::from_socket(error)),
            },
        }
        let message = self.decoder.next_message()?;
        Ok(message.map_or(Read::Part, |message| Read::Message(message.to_vec())))
    }

    /// Takes the descriptors that have come so far.
    pub(crate) fn take_received(&mut self) -> Received {
        Received(std::mem::take(&mut self.received).into_iter().map(Some).collect())
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
        loop {
            match self.reply(limits) {
                Ok(_) => {}
                Err(ClientError::Silent { .. }) => return false,
                Err(_) => return true,
            }
        }
    }

    /// Waits for an event, or until a reader of the output leaves, at most `patience`. Returns how
    /// long it waited if nothing came.
    fn wait(
        &self,
        event: PollFlags,
        patience: Duration,
        output: Option<&OutputReaders>,
    ) -> Result<Duration> {
        let socket = PollFd::new(self.socket.as_fd(), event);
        let readers = output.into_iter().flat_map(OutputReaders::polled);
        let mut polled: Vec<_> = [socket].into_iter().chain(readers).collect();
        let is_over = fds::poll_within(&mut polled, Some(patience))?;
        Ok(if is_over { patience } else { Duration::ZERO })
    }
}

/// The activity of the daemon with this pid. For a daemon within this process it is unknown,
/// because the client that asks runs too.
pub(crate) fn activity(pid: Option<u32>) -> Activity {
    pid.filter(|pid| *pid != std::process::id()).map_or(Activity::Idle, process::activity)
}

/// The outcome of a read.
pub(crate) enum Read {
    /// A whole reply.
    Message(Vec<u8>),
    /// A part of a reply.
    Part,
    /// Nothing came for this long.
    Nothing(Duration),
}

/// The descriptors that came with a reply. Each can be taken once.
#[derive(Default)]
pub(crate) struct Received(Vec<Option<OwnedFd>>);

impl Received {
    pub(crate) fn take(&mut self, index: u32) -> Result<OwnedFd> {
        let place = usize::try_from(index).ok().and_then(|index| self.0.get_mut(index));
        place.and_then(Option::take).ok_or_else(|| {
            let text = "the reply names a descriptor that did not come with it";
            ClientError::Protocol(text.to_owned())
        })
    }

    /// The deadline page made of the descriptors with these indices.
    pub(crate) fn page(&mut self, page: u32, line: u32) -> Result<Reader> {
        let (page, line) = (self.take(page)?, self.take(line)?);
        Reader::open(page, line).map_err(|error| ClientError::Protocol(error.to_string()))
    }
}

/// The parameters of a reply, or the error that it carries.
pub(crate) fn parameters<T: DeserializeOwned>(reply: Reply) -> Result<T> {
    reply.failure().map_or_else(|| read(reply.parameters()), Err)
}

fn read<T: DeserializeOwned>(parameters: &str) -> Result<T> {
    serde_json::from_slice(parameters.as_bytes())
        .map_err(|error| ClientError::Protocol(error.to_string()))
}

/// Connects without waiting; `None` if no process listens, or if its queue of connections is full.
pub(crate) fn connect_if_free(place: &Place) -> Result<Option<OwnedFd>> {
    match try_to_connect(place, None) {
        Err(Errno::EAGAIN) => Ok(None),
        tried => tried.map_err(|error| refused(place, error)),
    }
}

/// Connects to the process that listens; `None` if none does.
pub(crate) fn connect_if_running(place: &Place, options: &Options) -> Result<Option<Connection>> {
    let mut owed = Owed::new(options.limits);
    // The first wait gets the whole time, because each further one starts at the end of the queue.
    let mut patience = options.limits.idle;
    let mut tried = try_to_connect(place, None);
    while matches!(tried, Err(Errno::EAGAIN)) {
        tried = try_to_connect(place, Some(patience));
        if owed.grow(patience, || activity(recorded_pid(place))) {
            break;
        }
        patience = owed.patience();
    }
    match tried {
        Ok(socket) => Ok(socket.map(Connection::new)),
        Err(Errno::EAGAIN) => Err(ClientError::silent(recorded_pid(place))),
        Err(error) => Err(refused(place, error)),
    }
}

fn refused(place: &Place, error: Errno) -> ClientError {
    let error = io::Error::from(error);
    ClientError::Place(format!("cannot connect to {}: {error}", place.socket.display()))
}

/// Connects to the process that listens; `None` if there is none. The daemon may have a full queue
/// of connections that it has not accepted yet. This waits for a place in it for `patience`, or not
/// at all, and then fails with EAGAIN.
fn try_to_connect(place: &Place, patience: Option<Duration>) -> Result<Option<OwnedFd>, Errno> {
    let mut flags = SockFlag::SOCK_CLOEXEC;
    flags.set(SockFlag::SOCK_NONBLOCK, patience.is_none());
    let address = with_c_str(&place.socket, UnixAddr::new)?;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    if let Some(patience) = patience {
        // It bounds connect(2). 0 would mean a wait without end.
        let milliseconds = i64::try_from(patience.as_millis()).unwrap_or(i64::MAX).max(1);
        setsockopt(&socket, sockopt::SendTimeout, &TimeVal::milliseconds(milliseconds))?;
    }
    loop {
        match connect(socket.as_raw_fd(), &address) {
            Ok(()) => return Ok(Some(socket)),
            Err(Errno::ENOENT | Errno::ECONNREFUSED) => return Ok(None),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The pid that the daemon wrote to its instance lock.
pub(crate) fn recorded_pid(place: &Place) -> Option<u32> {
    pid_in(&place.dir.join("lock"))
}

/// The pid that a file contains.
pub(crate) fn pid_in(path: &Path) -> Option<u32> {
    let text = std::fs::read(path).ok()?;
    String::from_utf8_lossy(&text).split_whitespace().next()?.parse().ok()
}
