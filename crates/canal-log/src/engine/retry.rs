//! How long an engine's thread pauses between two attempts to reach the engine.
//!
//! Invariant: while commands of this host depend on the engine, each pause leaves most of the
//! remaining time. So an engine that is back in time is found in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use canal_sys::clock::boottime_ms;

/// The shortest pause, however little time remains.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// The shortest bound on one attempt: a server that is up answers within it.
#[cfg(feature = "postgres")]
const ATTEMPT_MIN: Duration = Duration::from_secs(1);

/// When commands of this host end unless it renews first. The daemon sets it, and the engine's
/// thread reads it.
#[derive(Clone, Debug, Default)]
pub(super) struct RenewBy(Arc<[AtomicU64; 2]>);

impl RenewBy {
    /// Sets the times, in milliseconds of CLOCK_BOOTTIME.
    pub(super) fn set(&self, times: [u64; 2]) {
        for (known, time) in self.0.iter().zip(times) {
            known.store(time, Ordering::Relaxed);
        }
    }

    /// The pause to make instead of `usual`.
    pub(super) fn pause(&self, usual: Duration) -> Duration {
        self.left().map_or(usual, |left| usual.min((left / 4).max(PAUSE_MIN)))
    }

    /// The bound on one attempt instead of `usual`, so that there is time for another.
    #[cfg(feature = "postgres")]
    pub(super) fn attempt(&self, usual: Duration) -> Duration {
        self.left().map_or(usual, |left| usual.min((left / 2).max(ATTEMPT_MIN)))
    }

    /// The time until the next of the two times.
    fn left(&self) -> Option<Duration> {
        left(self.0.each_ref().map(|time| time.load(Ordering::Relaxed)), boottime_ms())
    }
}

fn left(times: [u64; 2], now_ms: u64) -> Option<Duration> {
    let ahead = times.into_iter().filter(|time| *time > now_ms).min();
    ahead.map(|time| Duration::from_millis(time - now_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Duration = Duration::from_secs(5);

    #[test]
    fn the_next_of_the_two_times_counts() {
        let times = [4_500, 5_500];
        assert_eq!(left(times, 500), Some(Duration::from_secs(4)));
        assert_eq!(left(times, 4_500), Some(Duration::from_secs(1)));
        assert_eq!(left(times, 5_500), None);
        assert_eq!(left([0, 0], 0), None, "this host is no member");
    }

    #[test]
    fn a_pause_leaves_most_of_the_time_that_is_left() {
        let renew_by = RenewBy::default();
        assert_eq!((renew_by.pause(USUAL), renew_by.attempt(USUAL)), (USUAL, USUAL));
        let in_two_seconds = boottime_ms() + 2_000;
        renew_by.set([in_two_seconds, in_two_seconds]);
        assert!(renew_by.pause(USUAL) <= Duration::from_millis(500));
        assert!(renew_by.attempt(USUAL) <= ATTEMPT_MIN);
        assert_eq!(renew_by.pause(PAUSE_MIN), PAUSE_MIN, "it is not made longer");
        renew_by.set([boottime_ms() + 1, 0]);
        assert!(renew_by.pause(USUAL) >= PAUSE_MIN, "it never becomes a busy loop");
    }
}
