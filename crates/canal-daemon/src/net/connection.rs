//! A client's connection: calls that have not been served yet, and output that the client has not
//! read yet.
//!
//! Invariant: a reply is written whole, or the connection is closed. Nothing is ever written
//! between the parts of a reply.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::MSG_DONTWAIT;
use nix::sys::epoll::EpollFlags;
use serde::Serialize;

use crate::calls::call::{self, Answer, Asked, Call, Replies};
use crate::jobserver::pipes::Form;
use crate::net::call_state::{CallState, LogWait, Subject};
use canal_core::{Key, ProcessId, Request, RequestId};
use canal_protocol::frame::{Decoder, FrameError, MESSAGE_BYTES_MAX};
use canal_protocol::{ErrorName, Failure, SizeNote, WaitsNear, WireItem};
use canal_sys::peer::Credentials;
use canal_sys::{clock, fds};

/// The most calls that a client may send before it receives the reply to an earlier call.
pub(crate) const CALLS_AHEAD_MAX: usize = 256;

/// The most bytes of replies that a client may leave unread. If more are unread when the next reply
/// is due, the daemon closes the connection.
pub(crate) const OUTPUT_BYTES_MAX: usize = 1024 * 1024;

/// The most bytes read from one connection before the other connections are read.
const READ_BYTES_PER_TURN: usize = 128 * 1024;

/// The state of the data that a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    Open,
    /// It sent something that is not a call. The daemon discards everything after it.
    BrokenOff,
    /// It sends nothing further. The daemon still serves what it sent before.
    Ended,
}

/// The facts about the request of a client that the table does not know.
#[derive(Debug, Default)]
pub(crate) struct AskedFor {
    /// The process of the client becomes the command when its request is granted. It then makes no
    /// further calls, and the daemon learns of its end without a connection.
    pub closes_on_grant: bool,
    /// How the programs of its build find their jobserver, whose FIFOs accompany the grant.
    pub jobserver: Option<Form>,
    /// How canal parsed the keys of the request, for its reply.
    pub key_notes: Vec<SizeNote>,
}

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    pub peer: Credentials,
    /// When the daemon accepted it, in clock ticks since boot.
    pub accepted_ticks: u64,
    /// The process of the peer, with an identity that survives the reuse of its pid; set when it is
    /// first needed.
    pub process: Option<ProcessId>,
    decoder: Decoder,
    fds: Vec<OwnedFd>,
    pub calls: VecDeque<Call>,
    /// The event that the current call waits for. [`Conns`](crate::net::all_connections::Conns)
    /// sets it.
    pub(in crate::net) state: CallState,
    /// The place of the call among those that wait for the same subject.
    pub(in crate::net) place: Option<(Subject, u64)>,
    /// A grant after which the client has sent no call: it may not have read the grant.
    pub untold: Option<RequestId>,
    /// Provisional grants that wait for a confirmation.
    pub provisional: Vec<RequestId>,
    output: Output,
    input: Input,
    /// Whether the client closed the connection without having read everything that was sent.
    pub is_reset: bool,
    /// Whether the daemon closes it once the output is written. It serves nothing further on it.
    pub is_closing: bool,
    /// The replies that the client expects to the current call.
    replies: Replies,
    /// The facts about the client's request that the table does not know.
    pub asked: AskedFor,
    /// Set if there were too many connections. The daemon then answers the first call with this
    /// error.
    pub turned_away: Option<Box<Failure>>,
    /// When the client last sent something.
    pub heard_at: Instant,
    /// Whether the connection is in the list of connections to flush.
    pub touched: bool,
    /// The events that the daemon polls for; none before the end of the connection's first turn.
    pub watched_for: EpollFlags,
    /// The actions still allowed, if the connection was restricted.
    pub restriction: Option<Box<Restriction>>,
    /// The last request over several nodes. It stays here while the connection is open, even if it
    /// was refused.
    pub over_nodes: Option<Arc<Request>>,
    /// The last search of the client for deadlocks near its requests.
    pub looks_near: Option<Box<WaitsNear>>,
    /// When the client began to wait for a message because of the shared log, in milliseconds of
    /// CLOCK_BOOTTIME.
    pub wordless_since: Option<u64>,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd, peer: Credentials, accepted_ticks: u64) -> Self {
        Self {
            socket,
            peer,
            accepted_ticks,
            process: None,
            decoder: Decoder::new(MESSAGE_BYTES_MAX),
            fds: Vec::new(),
            calls: VecDeque::new(),
            state: CallState::Idle,
            place: None,
            untold: None,
            provisional: Vec::new(),
            output: Output::default(),
            input: Input::Open,
            is_reset: false,
            is_closing: false,
            replies: Replies::One,
            asked: AskedFor::default(),
            turned_away: None,
            heard_at: clock::now(),
            touched: false,
            watched_for: EpollFlags::empty(),
            restriction: None,
            over_nodes: None,
            looks_near: None,
            wordless_since: None,
        }
    }

    /// The event that the current call waits for.
    pub(crate) fn state(&self) -> &CallState {
        &self.state
    }

    /// The wait of the current call for the log.
    pub(crate) fn log_wait_mut(&mut self) -> Option<&mut LogWait> {
        if let CallState::Log(wait) = &mut self.state { Some(wait) } else { None }
    }

    /// Notes that a call was taken from the queue.
    pub(crate) fn begin_call(&mut self, replies: Replies) {
        self.replies = replies;
        // A client that calls again has read the earlier reply, or does not need it.
        self.untold = None;
    }

    /// Whether the client sends nothing further. The daemon still serves what it sent before.
    pub(crate) fn heard_end(&self) -> bool {
        self.input == Input::Ended
    }

    /// Sends an error, and closes the connection once that is written.
    fn give_up(&mut self, failure: &Failure) {
        self.replies = Replies::One;
        self.answer(Answer::failure(failure));
        self.is_closing = true;
        self.calls.clear();
        self.fds.clear();
    }

    /// Whether there is a call that can be served now.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.state, CallState::Idle) && !self.calls.is_empty() && !self.is_closing
    }

    /// Whether the client neither calls nor waits for anything, and has sent nothing for `time`.
    pub(crate) fn is_idle(&self, now: Instant, time: Duration) -> bool {
        let idle = matches!(self.state, CallState::Idle) && self.holds_nothing();
        let silent = now.saturating_duration_since(self.heard_at) >= time;
        idle && silent && self.calls.is_empty() && self.is_flushed()
    }

    /// Frees memory that is not needed while a request waits.
    pub(crate) fn save_memory(&mut self) {
        self.calls.shrink_to_fit();
        self.fds.shrink_to_fit();
        self.decoder.save_memory();
        self.output.queue.shrink_to_fit();
    }

    /// Whether nothing in the table depends on the connection.
    pub(crate) fn holds_nothing(&self) -> bool {
        use CallState::{Deferred, Log, Stores, Waits};
        let asks = matches!(self.state, Waits(_) | Log(_) | Deferred(_) | Stores(..));
        !asks && self.untold.is_none() && self.provisional.is_empty()
    }

    /// Reads the available data and queues the calls in it. `hung_up`: the kernel reported that the
    /// client closed its end, so a short read does not mean that nothing follows. Returns whether
    /// there may be more data, which has to wait for the next turn.
    pub(crate) fn read(&mut self, buffer: &mut [u8], hung_up: bool) -> bool {
        use io::ErrorKind::{ConnectionReset, Interrupted, WouldBlock};
        let mut budget = READ_BYTES_PER_TURN;
        loop {
            if !self.understand() {
                return self.is_about_to_be_served();
            }
            if budget == 0 {
                return true;
            }
            let fds_before = self.fds.len();
            let n = match fds::receive(self.socket.as_fd(), buffer, &mut self.fds, MSG_DONTWAIT) {
                Ok(n @ 1..) => n,
                Err(error) if error.kind() == Interrupted => continue,
                Err(error) if error.kind() == WouldBlock => return false,
                // The client closed the connection, or its writing half, which counts the same.
                closed => {
                    self.input = Input::Ended;
                    self.is_reset = closed.is_err_and(|error| error.kind() == ConnectionReset);
                    return false;
                }
            };
            budget = budget.saturating_sub(n);
            if self.is_deaf() {
                self.fds.clear();
                continue;
            }
            self.decoder.feed(&buffer[..n]);
            // A read ends at a message with descriptors, even if the buffer is not full.
            if n < buffer.len() && !hung_up && self.fds.len() == fds_before {
                return !self.understand() && self.is_about_to_be_served();
            }
        }
    }

    /// Whether the queued calls are served before the next read. A call that waits for a report
    /// keeps them waiting.
    fn is_about_to_be_served(&self) -> bool {
        !matches!(self.state, CallState::Report(None))
    }

    /// Queues the complete calls. Returns false if there are more than may be queued now.
    fn understand(&mut self) -> bool {
        while !self.is_deaf() {
            let full = self.calls.len() >= CALLS_AHEAD_MAX;
            if full && matches!(self.state, CallState::Idle | CallState::Report(None)) {
                // The queued calls are about to be served.
                return !self.decoder.has_message();
            }
            let call = match self.decoder.next_message() {
                Ok(None) => return true,
                Ok(Some(_)) if full || self.turned_away.is_some() => {
                    let failure = self.turned_away.as_deref().cloned().unwrap_or_else(|| {
                        let message =
                            format!("the client has more than {CALLS_AHEAD_MAX} unanswered calls");
                        Failure::new(ErrorName::TooMuch, message)
                    });
                    self.give_up(&failure);
                    return true;
                }
                Ok(Some(message)) => call::read(message, &mut self.fds),
                Err(error) => Err(error),
            };
            match call {
                Ok(call) => self.calls.push_back(call),
                // Nothing after this can be decoded. The daemon still answers the earlier calls.
                Err(error) => {
                    let name = match error {
                        FrameError::TooLarge(_) => ErrorName::TooMuch,
                        FrameError::Malformed(_) => ErrorName::Malformed,
                    };
                    let asked = Asked::Junk(Box::new(Failure::new(name, error.to_string())));
                    self.calls.push_back(Call { asked, replies: Replies::One, fds: Vec::new() });
                    self.input = Input::BrokenOff;
                }
            }
        }
        true
    }

    /// Whether incoming data is discarded. The daemon reads it only to notice the end of the
    /// connection.
    fn is_deaf(&self) -> bool {
        self.is_closing || self.input != Input::Open
    }

    /// Queues a message that precedes the final reply.
    pub(crate) fn progress<T: Serialize>(&mut self, parameters: &T) {
        self.answer(Answer::followed(parameters, true));
    }

    /// Queues a reply to the current call.
    pub(crate) fn answer(&mut self, answer: Answer) {
        self.wordless_since = None;
        if self.output.unsent() > OUTPUT_BYTES_MAX {
            // The client does not read, so the unread output is dropped.
            self.discard_output();
        }
        if !self.is_closing && !self.is_oneway() {
            self.output.put(answer.message, answer.fds);
        }
        self.is_closing |= answer.closes;
    }

    /// Whether the client accepts further replies to the current call.
    pub(crate) fn takes_more(&self) -> bool {
        self.replies == Replies::Many && !self.heard_end()
    }

    /// Whether the client expects no reply to the current call.
    pub(crate) fn is_oneway(&self) -> bool {
        self.replies == Replies::None
    }

    /// Drops the output that was not written, so that the client never receives it, and closes the
    /// connection.
    pub(crate) fn discard_output(&mut self) {
        self.output = Output::default();
        self.is_closing = true;
    }

    /// How many bytes the client has not taken yet.
    pub(crate) fn unsent(&self) -> usize {
        self.output.unsent()
    }

    /// Whether everything was written.
    pub(crate) fn is_flushed(&self) -> bool {
        self.output.unsent() == 0
    }

    /// Writes as much as the client accepts now.
    ///
    /// # Errors
    /// The connection is no longer usable.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let written = self.output.write(self.socket.as_fd());
        if matches!(self.state, CallState::Waits(_)) {
            // The next reply may be hours away, and thousands of clients may wait.
            self.output.queue.shrink_to_fit();
        }
        written
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Messages for a client, and the descriptors that accompany them.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Bytes, and the descriptors that accompany the first of them.
    queue: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    /// How many bytes of the first entry were sent.
    sent: usize,
}

impl Output {
    /// Appends a message, and descriptors, which accompany its first byte.
    pub(crate) fn put(&mut self, message: Vec<u8>, fds: Vec<OwnedFd>) {
        match self.queue.back_mut() {
            _ if message.is_empty() => {}
            Some((bytes, _)) if fds.is_empty() => bytes.extend_from_slice(&message),
            _ => self.queue.push_back((message, fds)),
        }
    }

    /// The number of bytes that the client has not accepted yet.
    pub(crate) fn unsent(&self) -> usize {
        let bytes: usize = self.queue.iter().map(|(bytes, _)| bytes.len()).sum();
        bytes.saturating_sub(self.sent)
    }

    /// Writes as much as the client accepts now.
    ///
    /// # Errors
    /// The connection is no longer usable.
    pub(crate) fn write(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        while let Some((bytes, descriptors)) = self.queue.front_mut() {
            let rest = bytes.get(self.sent..).unwrap_or_default();
            let with: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            match fds::send(socket, rest, &with, MSG_DONTWAIT) {
                Ok(0) => {}
                Ok(n) => {
                    self.sent += n;
                    descriptors.clear();
                    if self.sent >= bytes.len() {
                        self.queue.pop_front();
                        self.sent = 0;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// How many times a connection may be restricted.
const RESTRICTIONS_MAX: usize = 16;

/// The keys under which a connection may ask for leases over nodes. If there are several `Restrict`
/// calls, all of them apply.
///
/// Invariant: a connection never regains what a restriction removed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Restriction {
    each: Vec<Vec<Key>>,
}

impl Restriction {
    /// Whether each of these keys equals, or is below, a key of each restriction. A restriction
    /// without keys allows every key.
    pub(crate) fn allows(&self, items: &[WireItem]) -> bool {
        items.iter().all(|item| self.allows_key(Key::shared(item.key.clone()).ok().as_ref()))
    }

    /// The same for one key; `None` for a text that is no key.
    pub(crate) fn allows_key(&self, key: Option<&Key>) -> bool {
        let covers = |keys: &Vec<Key>| key.is_some_and(|key| keys.iter().any(|it| it.covers(key)));
        self.each.iter().all(|keys| keys.is_empty() || covers(keys))
    }

    /// Adds a restriction to these keys. An empty list allows every key. Returns whether there is
    /// room for it.
    pub(crate) fn add(&mut self, keys: Vec<Key>) -> bool {
        let has_room = self.each.len() < RESTRICTIONS_MAX;
        if has_room {
            self.each.push(keys);
        }
        has_room
    }

    /// The keys, as text for people.
    pub(crate) fn words(&self) -> String {
        let keys = self.each.iter().flatten().map(|key| format!("`{key}`"));
        let keys = keys.collect::<Vec<_>>().join(", ");
        let under = if keys.is_empty() { String::new() } else { format!(" on keys under {keys}") };
        format!("this connection is restricted to node leases{under}")
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
            output.put(text.as_bytes().to_vec(), fds);
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

    #[test]
    fn descriptors_of_a_message_without_bytes_go_nowhere() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let null = || vec![OwnedFd::from(std::fs::File::open("/dev/null").unwrap())];
        let mut output = Output::default();
        output.put(b"first".to_vec(), Vec::new());
        output.put(Vec::new(), null());
        output.put(b"last".to_vec(), Vec::new());
        output.write(ours.as_fd()).unwrap();
        let (mut buffer, mut received) = ([0; 64], Vec::new());
        let count = fds::receive(theirs.as_fd(), &mut buffer, &mut received, 0).unwrap();
        assert_eq!((&buffer[..count], received.len()), (&b"firstlast"[..], 0));
    }

    fn items(keys: &[&str]) -> Vec<WireItem> {
        let item = |key: &&str| WireItem { key: (*key).into(), ..WireItem::default() };
        keys.iter().map(item).collect()
    }

    #[test]
    fn each_restriction_counts_and_none_gives_back_what_another_took() {
        let keys = |keys: &[&str]| keys.iter().map(|key| Key::new(key).unwrap()).collect();
        let mut restriction = Restriction { each: vec![Vec::new()] };
        assert!(restriction.allows(&items(&["anything"])));
        restriction.each.push(keys(&["deploy", "db/x"]));
        for (asked, allowed) in [
            (&["deploy"][..], true),
            (&["deploy/web", "db/x"], true),
            (&["deployment"], false),
            (&["db"], false),
            (&["deploy", "other"], false),
            (&["/deploy"], false),
        ] {
            assert_eq!(restriction.allows(&items(asked)), allowed, "{asked:?}");
            let mut each = asked.iter().map(|key| Key::new(key));
            let all = each.all(|key| restriction.allows_key(key.ok().as_ref()));
            assert_eq!(all, allowed, "{asked:?}");
        }
        restriction.each.push(keys(&["deploy/web", "other"]));
        assert!(restriction.allows(&items(&["deploy/web/1"])));
        assert!(
            !restriction.allows(&items(&["deploy"])) && !restriction.allows(&items(&["other"]))
        );
    }
}
