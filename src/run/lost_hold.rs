//! A hold that was lost while its command ran, or before the command started.

use crate::protocol::OnLost;
use crate::sys::deadline::{Reader, State, Why};

/// What was lost, when and why. Times are milliseconds of CLOCK_BOOTTIME.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostHold {
    /// The fencing token of the hold.
    pub token: u64,
    /// Why.
    pub why: Why,
    /// From this time on the hold protects nothing.
    pub at: u64,
    /// When the engine was last known to be reachable.
    pub reached_at: u64,
    /// The name of the engine in messages.
    pub engine: String,
    /// The name of this host in messages.
    pub host: String,
    /// What happens to the command; `None` if it had not begun.
    pub then: Option<OnLost>,
    /// Whether the kernel refuses to signal the command.
    pub is_refused: bool,
}

impl LostHold {
    /// The loss of the hold with this token, if at `now` the page reports it as lost or possibly
    /// lost.
    pub(super) fn found(page: &Reader, token: u64, now: u64) -> Option<Self> {
        let state = page.state();
        state.is_over(now).then(|| Self::of(page, &state, token, now))
    }

    /// The loss of the hold with this token, from the state of the page at `now`.
    pub(super) fn of(page: &Reader, state: &State, token: u64, now: u64) -> Self {
        Self {
            token,
            why: state.lost.map_or(Why::Away, |lost| lost.why),
            at: state.lost.map_or(now, |lost| lost.at),
            reached_at: state.deadline.reached_at,
            engine: page.engine(),
            host: page.label(),
            then: None,
            is_refused: false,
        }
    }
}
