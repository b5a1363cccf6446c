//! One node of a request: its connection, the calls on it, and the meaning of the answers.
//!
//! Invariant: an answer is passed on only while its connection is open. Each answer belongs to the
//! oldest unanswered call of that connection.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use serde::Serialize;

use canal_lock::client::nodes::link::{self, Link, Replies, Reply, outcome, parameters};
use canal_protocol::{
    Failure, INTERFACE, NODES_INTERFACE, NoParameters, Node, NodeFailure, NodeIdentity, Report,
    RequestTag, Tag,
};
use canal_sys::clock::boottime_ms;
use canal_sys::fds;

use super::nodes_request::Around;

/// The shortest interval, in milliseconds, in which each side of a connection must send something.
/// It is well below the shortest TTL, for which the bridge waits.
const BEAT_MS: u64 = 2_500;

/// The longest such interval while a part depends on the connection: each beat wakes several
/// processes.
const BEAT_MS_MAX: u64 = 10_000;

/// The same while nothing depends on it. A bridge without a request for a lease waits for a minute.
const BEAT_MS_MAX_RESTING: u64 = 25_000;

/// The bounds of the time, in seconds, after which ssh checks a silent connection. It gives up when
/// twice that time is over.
const ALIVE_S: u64 = 5;
const ALIVE_S_MAX: u64 = 25;

/// The shortest time without a message after which a connection is given up.
const SILENCE_MS: u64 = 15_000;

/// How long a node may take to send its identity: ssh must connect, and a daemon start.
const CONNECT_MS: u64 = 25_000;

/// How long a call may take if it does not wait for other requests.
const CALL_MS: u64 = 15_000;

/// How often to look for processes of ended connections.
const REAP_MS: u64 = 1_000;

/// One node of a request.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) node: Node,
    link: Option<Link>,
    calls: VecDeque<Call>,
    /// When the node was last asked for a sign of life.
    beaten_at: u64,
    /// How often it is asked for one, in milliseconds, while a part depends on the connection.
    beat_ms: u64,
    /// The same while none does.
    rest_ms: u64,
    /// The seconds of silence after which ssh checks the connection.
    alive_s: u64,
    /// Whether a part depends on the connection: it was asked for, and is not confirmed.
    is_asked: bool,
    /// Whether the node has proved on this connection that it is the right one.
    pub(super) reached: bool,
}

/// An unanswered call.
#[derive(Clone, Copy, Debug)]
struct Call {
    kind: Kind,
    sent: u64,
    /// Whether one of several answers has arrived.
    is_begun: bool,
}

impl Call {
    /// When its answer is overdue; `None` if it depends on other requests.
    fn due_at(&self) -> Option<u64> {
        match self.kind {
            Kind::Identify => Some(self.sent + CONNECT_MS),
            Kind::Collect => None,
            _ => (!self.is_begun).then_some(self.sent + CALL_MS),
        }
    }
}

/// What a call asks for: the name of its method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Identify,
    Collect,
    ConfirmAt,
    Renew,
    Release,
    WaitsNear,
    /// The leader now and after each change. The connection then answers no other call.
    Leader,
}

impl Kind {
    fn method(self) -> String {
        match self {
            Self::Renew | Self::Release | Self::Leader => format!("{INTERFACE}.{self:?}"),
            _ => format!("{NODES_INTERFACE}.{self:?}"),
        }
    }
}

/// A message from a node.
#[derive(Debug)]
pub(super) enum Heard {
    /// Its identity.
    Identity(Box<NodeIdentity>),
    /// Its answer to any other call.
    Answer(Answer),
    /// The connection has ended.
    Away(NodeFailure),
}

/// The answer to a call.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) kind: Kind,
    /// When the call was sent.
    pub(super) sent: u64,
    /// Whether the same call gets more answers.
    pub(super) continues: bool,
    pub(super) result: Result<Reply, Box<Failure>>,
}

impl Member {
    /// A node that is only asked.
    pub(super) fn new(node: Node) -> Self {
        Self::with_ttl(node, 2 * BEAT_MS)
    }

    /// A node of a request, with leases of this TTL. The command may run for three quarters of the
    /// TTL after the last answer. ssh notices a dead connection after half of the TTL, so that the
    /// last quarter is left to connect again.
    pub(super) fn with_ttl(node: Node, ttl_ms: u64) -> Self {
        Self {
            node,
            link: None,
            calls: VecDeque::new(),
            beaten_at: 0,
            beat_ms: (ttl_ms / 6).clamp(BEAT_MS, BEAT_MS_MAX),
            rest_ms: (ttl_ms / 2).min(BEAT_MS_MAX_RESTING),
            alive_s: (ttl_ms / 4_000).clamp(ALIVE_S, ALIVE_S_MAX),
            is_asked: false,
            reached: false,
        }
    }

    /// Opens a connection, and asks for the node's identity.
    pub(super) fn open(&mut self, around: &Around) -> Result<(), NodeFailure> {
        let Around { here, options, .. } = around;
        self.link = Some(Link::open(&self.node, here, options, self.alive_s)?);
        self.call(Kind::Identify, &NoParameters {})
    }

    pub(super) fn close(&mut self) {
        self.calls.clear();
        (self.is_asked, self.reached) = (false, false);
        self.link = None;
    }

    pub(super) fn is_open(&self) -> bool {
        self.link.is_some()
    }

    /// When the node last sent something, by CLOCK_BOOTTIME, if the connection is open.
    pub(super) fn heard_at(&self) -> Option<u64> {
        self.link.as_ref().map(Link::heard_at)
    }

    /// Sends the node the state of the whole request to show. No answer follows, and the message
    /// may be lost.
    pub(super) fn report(&mut self, report: &Report) {
        if let Some(link) = &mut self.link {
            let _ = link.send(&format!("{NODES_INTERFACE}.Report"), report, Replies::None);
        }
    }

    /// Tells the node why a waiting request is about to end with its connection.
    pub(super) fn abandon(&mut self, tag: Tag) {
        let waits = self.calls.iter().any(|call| call.kind == Kind::Collect);
        if let Some(link) = self.link.as_mut().filter(|_| waits) {
            let _ = link.send(&format!("{INTERFACE}.Abandon"), &RequestTag { tag }, Replies::None);
            link.end_by_itself();
        }
    }

    pub(super) fn call(&mut self, kind: Kind, what: &impl Serialize) -> Result<(), NodeFailure> {
        let Some(link) = &mut self.link else {
            return Err(NodeFailure::passing("the connection was closed"));
        };
        // Taken before the first byte is written.
        let sent = boottime_ms();
        let replies = match kind {
            Kind::Collect | Kind::Leader => Replies::More,
            _ => Replies::One,
        };
        link.send(&kind.method(), what, replies)?;
        self.calls.push_back(Call { kind, sent, is_begun: false });
        self.is_asked |= kind == Kind::Collect;
        self.beaten_at = sent;
        Ok(())
    }

    pub(super) fn polled(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.link.iter().flat_map(Link::polled)
    }

    /// How long the caller may sleep, in milliseconds.
    pub(super) fn patience_ms(&self) -> u64 {
        let Some(link) = &self.link else { return u64::MAX };
        if link.is_closing() {
            return 20;
        }
        let beat_at = self.beaten_at.saturating_add(self.beat_ms(link));
        let due_at = self.calls.front().and_then(Call::due_at).unwrap_or(u64::MAX);
        let until = if self.is_connecting() { due_at } else { beat_at.min(due_at) };
        until.saturating_sub(boottime_ms()).max(1)
    }

    /// Whether the node has not sent its identity yet.
    fn is_connecting(&self) -> bool {
        self.calls.front().is_some_and(|call| call.kind == Kind::Identify)
    }

    /// How often the other side needs a sign of life, in milliseconds.
    fn beat_ms(&self, link: &Link) -> u64 {
        let waits = self.calls.iter().any(|call| call.kind == Kind::Collect);
        match link.is_local() {
            // A daemon of this machine only ends grants whose client is silent.
            true if waits || !self.is_asked => u64::MAX,
            false if !self.is_asked => self.rest_ms,
            _ => self.beat_ms,
        }
    }

    /// Reads the messages that have arrived. [`Heard::Away`] is always the last; the caller must
    /// then close the connection.
    pub(super) fn turn(&mut self) -> Vec<Heard> {
        let Some(link) = &mut self.link else { return Vec::new() };
        let answers = match link.turn() {
            Ok(answers) => answers,
            Err(failure) => return vec![Heard::Away(failure)],
        };
        let mut heard = Vec::new();
        for answer in answers {
            heard.push(self.understand(answer).unwrap_or_else(Heard::Away));
            if let Some(Heard::Away(_)) = heard.last() {
                return heard;
            }
        }
        heard.extend(self.silence().map(|silence| Heard::Away(NodeFailure::passing(silence))));
        heard
    }

    /// The failure of a node that was silent for too long. Asks for a sign of life in time.
    fn silence(&mut self) -> Option<&'static str> {
        let (beat_ms, now) = (self.beat_ms(self.link.as_ref()?), boottime_ms());
        let since = |time: u64| now.saturating_sub(time);
        let is_overdue = self.calls.front().and_then(Call::due_at).is_some_and(|at| now > at);
        if self.is_connecting() {
            return is_overdue.then_some("no answer");
        }
        if is_overdue {
            return Some("its daemon does not answer");
        }
        if since(self.beaten_at) >= beat_ms {
            // If the machine was suspended, or the coordinator stopped, it has not asked for that
            // time.
            let asked_in_time = since(self.beaten_at) < 3 * beat_ms;
            let link = self.link.as_mut()?;
            if asked_in_time && since(link.heard_at()) > SILENCE_MS.max(2 * beat_ms) {
                return Some("no data on the connection");
            }
            link.beat();
            self.beaten_at = now;
        }
        None
    }

    /// Finds the call to which a reply belongs.
    fn understand(&mut self, reply: Reply) -> Result<Heard, NodeFailure> {
        let continues = reply.continues;
        let Call { kind, sent, .. } = match self.calls.front_mut() {
            Some(call) if continues => {
                call.is_begun = true;
                *call
            }
            _ => self.calls.pop_front().ok_or_else(unexpected)?,
        };
        let result = outcome(reply)?;
        match kind {
            Kind::ConfirmAt => self.is_asked = false,
            Kind::Collect => self.is_asked = result.is_ok(),
            _ => {}
        }
        Ok(match (kind, result) {
            (Kind::Identify, Ok(reply)) => Heard::Identity(parameters(&reply)?),
            (Kind::Identify, Err(failure)) => Heard::Away(NodeFailure::permanent(failure.message)),
            (_, result) => Heard::Answer(Answer { kind, sent, continues, result }),
        })
    }
}

/// The failure of a node that sent an answer to nothing.
pub(super) fn unexpected() -> NodeFailure {
    NodeFailure::passing("it sent an unexpected answer")
}

/// Sleeps until a member or another descriptor may have something to read, or a member needs its
/// turn, or this time of CLOCK_BOOTTIME has passed. Reaps the processes of ended connections.
pub(super) fn sleep<'a>(
    members: impl Iterator<Item = &'a Member> + Clone,
    others: impl IntoIterator<Item = BorrowedFd<'a>>,
    within_ms: u64,
) -> io::Result<()> {
    let reap_ms = if link::reap() { REAP_MS } else { u64::MAX };
    let patience_ms =
        members.clone().map(Member::patience_ms).fold(within_ms.min(reap_ms), u64::min);
    let patience = Duration::from_millis(patience_ms);
    // The clock of poll(2) stops while the machine is suspended. If no descriptor is left for the
    // timer, the sleep is longer by that time.
    let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC).ok();
    // A time of 0 would disarm it.
    let time = TimeSpec::from_duration(patience.max(Duration::from_millis(1)));
    let expiration = Expiration::OneShot(time);
    timer.iter().for_each(|timer| _ = timer.set(expiration, TimerSetTimeFlags::empty()));
    let others = others.into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    let mut polled: Vec<PollFd<'_>> = members.flat_map(Member::polled).chain(others).collect();
    polled.extend(timer.iter().map(|timer| PollFd::new(timer.as_fd(), PollFlags::POLLIN)));
    fds::poll_within(&mut polled, Some(patience)).map(drop)
}
