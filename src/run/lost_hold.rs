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
    /// From when on the hold no longer protects anything.
    pub at: u64,
    /// When the engine was last known to be reached.
    pub reached_at: u64,
    /// What people know the engine by.
    pub engine: String,
    /// What people know this host by.
    pub host: String,
    /// What becomes of the command; `None` if it had not begun.
    pub then: Option<OnLost>,
    /// Whether the kernel refuses to signal the command.
    pub is_refused: bool,
}

impl LostHold {
    /// The loss of the hold with this token, if the page says at `now` that it is lost or may be.
    pub(super) fn found(page: &Reader, token: u64, now: u64) -> Option<Self> {
        let state = page.state();
        state.is_over(now).then(|| Self::of(page, &state, token, now))
    }

    /// The loss of the hold with this token, by the state of the page at `now`.
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
