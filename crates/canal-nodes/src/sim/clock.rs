//! A clock with its own rate.

use fastrand::Rng;

use crate::Millis;

/// The greatest difference between the rate of a clock and the true one, in millionths. Two clocks
/// may then differ by a hundredth, as over an engine.
const DRIFT_MAX: i64 = 5_000;

/// A clock. Its times are milliseconds since its own origin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    offset: u64,
    rate: u64,
}

const UNIT: u64 = 1_000_000;

impl Clock {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let drift = rng.i64(-DRIFT_MAX..=DRIFT_MAX);
        Self { offset: rng.u64(0..1_000_000), rate: UNIT.saturating_add_signed(drift) }
    }

    /// The time that it shows at a true time.
    pub(super) fn at(self, now: u64) -> Millis {
        self.offset + now * self.rate / UNIT
    }

    /// The first true time at which it shows `shown`.
    pub(super) fn when(self, shown: Millis) -> u64 {
        if shown == Millis::MAX {
            return u64::MAX;
        }
        (shown.saturating_sub(self.offset) * UNIT).div_ceil(self.rate)
    }
}
