//! A clock that runs at a rate of its own.

use fastrand::Rng;

use crate::nodes::Millis;

/// The greatest difference of a clock's rate from the true one, in millionths. Two clocks may
/// differ by a hundredth then, as over an engine.
const DRIFT_MAX: i64 = 5_000;

/// A clock. Its times are milliseconds since some moment of its own.
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

    /// What it shows at a true time.
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
