//! The connection to one node.

use super::turn::Turn;
use crate::Millis;

/// How long to wait after a failure before opening the next connection. Each further failure
/// doubles it.
const RETRY_MS: Millis = 500;

/// The longest such wait while no command runs.
const RETRY_MAX_MS: Millis = 15_000;

/// The connection to one node.
#[derive(Clone, Debug, Default)]
pub(super) struct Link {
    state: State,
    /// The time since which the node is silent; `None` while the connection is open.
    silent_since: Option<Millis>,
    /// Why it last failed; `None` once it has been open again.
    trouble: Option<Trouble>,
    /// The earliest time to open the next connection.
    retry_at: Millis,
    failures: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Closed,
    Connecting,
    Open,
}

/// Why a connection failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) is_permanent: bool,
    pub(super) why: String,
}

impl Link {
    /// A connection that is yet to be opened.
    pub(super) fn new(now: Millis) -> Self {
        Self { silent_since: Some(now), retry_at: now, ..Self::default() }
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    pub(super) fn silent_since(&self) -> Option<Millis> {
        self.silent_since
    }

    pub(super) fn trouble(&self) -> Option<&Trouble> {
        self.trouble.as_ref()
    }

    pub(super) fn is_permanently_away(&self) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| trouble.is_permanent)
    }

    /// Whether the node answers, or has been silent so briefly that it still may.
    pub(super) fn may_answer(&self, turn: &mut Turn, silence_ms: Millis) -> bool {
        let is_silent = |since: Millis| turn.is_silent(since, silence_ms);
        !self.is_permanently_away() && !self.silent_since.is_some_and(is_silent)
    }

    pub(super) fn is_due(&self, turn: &mut Turn) -> bool {
        self.is_closed() && turn.is_past(self.retry_at)
    }

    pub(super) fn connect(&mut self) {
        self.state = State::Connecting;
    }

    pub(super) fn reached(&mut self) {
        self.state = State::Open;
        self.silent_since = None;
        self.trouble = None;
        self.failures = 0;
    }

    /// Records that the connection broke or could not be opened. The next attempt follows after at
    /// most `longest_ms`.
    pub(super) fn fail(&mut self, now: Millis, trouble: Trouble, longest_ms: Option<Millis>) {
        let delay_ms = (RETRY_MS << self.failures.min(5)).min(longest_ms.unwrap_or(RETRY_MAX_MS));
        self.state = State::Closed;
        self.silent_since.get_or_insert(now);
        self.trouble = Some(trouble);
        self.retry_at = now.saturating_add(delay_ms);
        self.failures += 1;
    }

    /// Records that a call has been unanswered since `since`, and opens another connection at once.
    pub(super) fn suspect(&mut self, now: Millis, since: Millis) {
        let why = "it does not answer".to_owned();
        self.state = State::Closed;
        self.silent_since.get_or_insert(since);
        self.trouble = Some(Trouble { is_permanent: false, why });
        self.retry_at = now;
    }

    /// Records that the connection was closed on purpose.
    pub(super) fn close(&mut self, now: Millis) {
        self.state = State::Closed;
        self.silent_since.get_or_insert(now);
        self.retry_at = now;
    }
}
