//! A client's connection: calls that have not been served yet, and output that the client has not
//! read yet.
//!
//! Invariant: a reply is written whole, or the connection is closed. Nothing is ever written
//! between the parts of a reply.

pub(super) mod read;
pub(super) mod reply;
pub(super) mod restriction;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::epoll::EpollFlags;

use crate::calls::answer::Answer;
use crate::calls::call::{Call, Replies};
use crate::host::Ticket;
use crate::jobserver::pipes::Form;
use crate::net::call_state::{CallState, LogWait, StatusWatch, Subject};
use crate::net::connection::restriction::Restriction;
use crate::net::connection_limits::TurnedAway;
use crate::net::output::Output;
use canal_core::{ProcessId, Request, RequestId};
use canal_protocol::frame::Decoder;
use canal_protocol::message_size::MESSAGE_BYTES_MAX;
use canal_protocol::{Failure, SizeNote, WaitsNear};
use canal_sys::clock;
use canal_sys::peer::Credentials;

pub(crate) use crate::net::connection::read::ReadStatus;

/// The state of the data that a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::net) enum Input {
    Open,
    /// It sent something that is not a call. The daemon discards everything after it.
    BrokenOff,
    /// It sends nothing further. The daemon still serves what it sent before.
    Ended,
}

/// Whether the daemon closes a connection. It then serves nothing further on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::net) enum Closing {
    No,
    /// It closes the connection once the output is written.
    OnceWritten,
    /// It closes the connection once the output is written, or soon if the client does not read.
    Soon,
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
    /// The event that the current call waits for. [`Conns`](crate::net::connections::Conns)
    /// sets it.
    pub(in crate::net) state: CallState,
    /// The place of the call among those that wait for the same subject.
    pub(in crate::net) place: Option<(Subject, u64)>,
    /// A grant after which the client has sent no call: it may not have read the grant.
    pub untold: Option<RequestId>,
    /// Provisional grants that wait for a confirmation.
    pub provisional: Vec<RequestId>,
    output: Output,
    pub(in crate::net) input: Input,
    pub(in crate::net) closing: Closing,
    /// The replies that the client expects to the current call.
    replies: Replies,
    /// The facts about the client's request that the table does not know.
    pub asked: AskedFor,
    /// Set if there were too many connections. The daemon then answers the first call with this
    /// error.
    pub turned_away: Option<TurnedAway>,
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
            closing: Closing::No,
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

    /// Whether the current call waits until this change comes out of the log.
    pub(crate) fn awaits(&self, ticket: Ticket) -> bool {
        matches!(&self.state, CallState::Log(wait) if wait.is_for(ticket))
    }

    /// The wait of the current call for the log.
    pub(crate) fn log_wait_mut(&mut self) -> Option<&mut LogWait> {
        if let CallState::Log(wait) = &mut self.state { Some(wait) } else { None }
    }

    /// The watch of the status by the current call.
    pub(crate) fn status_watch_mut(&mut self) -> Option<&mut StatusWatch> {
        if let CallState::Watches(watch) = &mut self.state { Some(watch) } else { None }
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
        self.close();
        self.calls.clear();
        self.fds.clear();
    }

    /// Whether there is a call that can be served now.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.state, CallState::Idle) && !self.calls.is_empty() && !self.is_closing()
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
        self.output.save_memory();
    }

    /// Whether the client watches the status.
    pub(crate) fn watches(&self) -> bool {
        matches!(self.state, CallState::Watches(_))
    }

    /// Whether the client watches the leader of a key.
    pub(crate) fn watches_leader(&self) -> bool {
        matches!(self.state, CallState::WatchesLeader(_))
    }

    /// Whether the connection is queued for a report.
    pub(crate) fn awaits_report(&self) -> bool {
        match &self.state {
            CallState::Report => true,
            CallState::Watches(watch) => watch.is_queued,
            _ => false,
        }
    }

    /// Whether nothing in the table depends on the connection.
    pub(crate) fn holds_nothing(&self) -> bool {
        !self.state.holds_something() && self.untold.is_none() && self.provisional.is_empty()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
