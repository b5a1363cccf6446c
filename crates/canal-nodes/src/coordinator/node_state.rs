//! The coordinator's knowledge of one node and of the connection to it, how long a node may be
//! silent, the durations of its lease, and one call of the coordinator.

use canal_core::Token;
use canal_protocol::NodeFailure;

use crate::{Asking, Call, Effect, Millis, Refusal};

/// How long a node may be silent while it is needed, in milliseconds.
pub(super) const SILENCE_MS: Millis = 5_000;

/// How long to try to reach nodes without which nothing can be done.
pub(super) const PATIENCE_MS: Millis = 3 * SILENCE_MS;

/// The durations that follow from a TTL, in milliseconds. Grace and margin have the same
/// proportions as over an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The time to live.
    pub ttl_ms: Millis,
    /// How often a lease is renewed.
    pub renewal_ms: Millis,
    /// From TERM to KILL.
    pub grace_ms: Millis,
    /// From KILL to the end of the TTL. Clocks may differ by a tenth of it, and it takes time to
    /// end a command.
    pub margin_ms: Millis,
    /// How long a node that holds a lease of a running command may be silent.
    pub renewal_silence_ms: Millis,
}

impl Timing {
    /// The durations for a TTL.
    pub fn new(ttl_ms: u64) -> Self {
        Self {
            ttl_ms,
            renewal_ms: ttl_ms / 3,
            grace_ms: ttl_ms / 6,
            margin_ms: ttl_ms / 12,
            renewal_silence_ms: SILENCE_MS.min(ttl_ms / 6),
        }
    }

    /// How long a command may run without a renewal.
    pub(crate) fn lived_ms(&self) -> Millis {
        self.ttl_ms - self.margin_ms
    }
}

/// One call of the coordinator.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) now: Millis,
    /// No node counts as silent before this time: this process was stopped, and is about to read
    /// the messages that arrived meanwhile.
    pub(super) patient_until: Millis,
    pub(super) effects: Vec<Effect>,
    /// The earliest time for which something waits.
    pub(super) wake_at: Option<Millis>,
}

impl Turn {
    /// Whether a call has been unanswered for too long.
    pub(super) fn is_silent(&mut self, since: Millis, silence_ms: Millis) -> bool {
        let until = since.saturating_add(silence_ms).max(self.patient_until);
        self.is_past(until)
    }

    /// Whether a time has come. If not, the coordinator is called again at that time.
    pub(super) fn is_past(&mut self, at: Millis) -> bool {
        if self.now >= at {
            return true;
        }
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
        false
    }

    /// Calls a node. If it does not answer within `silence_ms`, the coordinator is called again.
    pub(super) fn call(&mut self, node: usize, call: Call, silence_ms: Millis) {
        self.is_past(self.now.saturating_add(silence_ms));
        self.effects.push(Effect::Node(node, call));
    }
}

/// How long to wait after a failure before opening the next connection. Each further failure
/// doubles it.
const RETRY_MS: Millis = 500;

/// The longest such wait while no command runs.
const RETRY_MAX_MS: Millis = 15_000;

/// The coordinator's knowledge of one node.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    /// The time since which it is silent; `None` while the connection is open.
    pub(super) silent_since: Option<Millis>,
    /// Whether a connection is being opened.
    is_connecting: bool,
    /// Why the connection last failed; `None` once it has been open again.
    trouble: Option<NodeFailure>,
    /// The earliest time to open the next connection.
    retry_at: Millis,
    failures: u32,
    pub(super) hold: Hold,
    /// The number of the lease in the last request to it; 0 before the first.
    pub(super) lease: u32,
    /// How it was asked under that number, if the request may still wait there or have a grant that
    /// is not yet to be confirmed.
    pub(super) asked: Option<Asking>,
    /// Whether it was asked for a spare in this round, and so knows the list of the request.
    pub(super) is_announced: bool,
    /// When the coordinator sent the last call whose answer shows that the lease is firm.
    pub(super) sent: Option<Millis>,
    /// How long the node keeps the lease, according to its answer: another client may have renewed
    /// it with a TTL other than the plan's.
    pub(super) ttl_ms: Option<Millis>,
    /// The time since which a renewal is unanswered.
    pub(super) renewing: Option<Millis>,
    /// When the next renewal is due.
    pub(super) renew_at: Millis,
    /// The earliest time to ask it.
    pub(super) ask_at: Millis,
    /// The time from which it grants anything over nodes.
    pub(super) grants_from: Millis,
    /// Why it refused the request in this round.
    pub(super) refused: Option<(Refusal, NodeFailure)>,
    /// Why it will never grant the request.
    pub(super) unfit: Option<NodeFailure>,
    /// How many times it failed to confirm its own grant while no command ran.
    pub(super) unconfirmed: u32,
    /// Why it is away, if that was reported.
    pub(super) said_away: Option<String>,
    /// Whether a report named it as not granting yet.
    pub(super) said_not_yet: bool,
}

/// The state of this request at a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Hold {
    /// It holds nothing, or something that ends with a closed connection: see `asked`.
    #[default]
    Nothing,
    /// It may hold a firm lease.
    Unknown,
    /// It was asked, and has not answered.
    Asked { since: Millis },
    /// The request waits there.
    Queued,
    /// It has a grant that ends with the connection.
    Collecting { token: Token },
    /// It has such a grant, and has not answered a `ConfirmAt`.
    Confirming { since: Millis },
    /// It has a firm lease.
    Firm,
    /// It has not answered a release.
    Releasing { since: Millis },
}

impl Hold {
    /// Whether the node forgets the request when the connection ends.
    pub(super) fn ends_with_connection(self) -> bool {
        matches!(self, Self::Asked { .. } | Self::Queued | Self::Collecting { .. })
    }
}

impl Node {
    /// A node whose connection is yet to be opened.
    pub(super) fn new(now: Millis) -> Self {
        Self { silent_since: Some(now), retry_at: now, ..Self::default() }
    }

    pub(super) fn is_open(&self) -> bool {
        self.silent_since.is_none()
    }

    pub(super) fn is_closed(&self) -> bool {
        !self.is_open() && !self.is_connecting
    }

    pub(super) fn is_permanently_away(&self) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| trouble.permanent)
    }

    /// Whether the node answers, or has been silent so briefly that it still may.
    pub(super) fn may_answer(&self, turn: &mut Turn, silence_ms: Millis) -> bool {
        let is_silent = |since: Millis| turn.is_silent(since, silence_ms);
        !self.is_permanently_away() && !self.silent_since.is_some_and(is_silent)
    }

    /// Whether it was asked for a spare, and is not yet asked to confirm.
    pub(super) fn is_spare(&self) -> bool {
        self.asked.is_some_and(|asked| asked.spare)
    }

    /// Whether a grant of this node is, or may become, part of the lock.
    pub(super) fn is_held(&self) -> bool {
        match self.hold {
            Hold::Collecting { .. } => !self.is_spare(),
            Hold::Confirming { .. } | Hold::Firm => true,
            _ => false,
        }
    }

    /// Why it cannot be used at present, as text for the user.
    pub(super) fn obstacle(&self) -> NodeFailure {
        let known = self.unfit.clone().or_else(|| self.trouble.clone());
        known.unwrap_or_else(|| {
            NodeFailure::passing(match self.is_open() {
                true => "it is new or has lost its state, and does not grant node leases yet",
                false => "it does not answer",
            })
        })
    }

    /// Whether to open the connection now; if so, the caller must do so.
    pub(super) fn connects(&mut self, turn: &mut Turn) -> bool {
        let connects = self.is_closed() && turn.is_past(self.retry_at);
        self.is_connecting |= connects;
        connects
    }

    pub(super) fn reached(&mut self) {
        (self.silent_since, self.trouble, self.is_connecting) = (None, None, false);
        (self.failures, self.renew_at) = (0, 0);
    }

    /// Records that the connection broke or could not be opened. The next attempt follows after at
    /// most `longest_ms`.
    pub(super) fn away(&mut self, now: Millis, trouble: NodeFailure, longest_ms: Option<Millis>) {
        let delay_ms = (RETRY_MS << self.failures.min(5)).min(longest_ms.unwrap_or(RETRY_MAX_MS));
        self.disconnected(trouble, now);
        self.retry_at = now.saturating_add(delay_ms);
        self.failures += 1;
    }

    /// Reconnects at once if a call has been unanswered for so long. Returns whether it did.
    pub(super) fn suspect(&mut self, turn: &mut Turn, silence_ms: Millis) -> bool {
        let since = match self.hold {
            Hold::Asked { since } | Hold::Confirming { since } | Hold::Releasing { since } => since,
            _ => self.renewing.unwrap_or(Millis::MAX),
        };
        let is_silent = turn.is_silent(since, silence_ms);
        if is_silent {
            self.disconnected(NodeFailure::passing("it does not answer"), since);
            self.retry_at = turn.now;
        }
        is_silent
    }

    /// Records that the connection was closed on purpose.
    pub(super) fn close(&mut self, now: Millis) {
        self.is_connecting = false;
        self.silent_since.get_or_insert(now);
        self.retry_at = now;
    }

    /// Records that the connection has ended.
    fn disconnected(&mut self, trouble: NodeFailure, since: Millis) {
        self.is_connecting = false;
        self.silent_since.get_or_insert(since);
        self.trouble = Some(trouble);
        self.renewing = None;
        // The node knows the list only while the connection is open.
        self.is_announced = false;
        self.ask_at = 0;
        self.hold = match self.hold {
            hold if hold.ends_with_connection() => Hold::Nothing,
            Hold::Releasing { .. } if self.asked.is_some() => Hold::Nothing,
            Hold::Confirming { .. } | Hold::Releasing { .. } => Hold::Unknown,
            other => other,
        };
    }

    /// Records that the node holds nothing.
    pub(super) fn gone(&mut self) {
        self.hold = Hold::Nothing;
        self.asked = None;
        self.sent = None;
        self.ttl_ms = None;
        self.renewing = None;
    }
}
