//! How long a host lives without a renewal, and when its commands are stopped.

use super::snapshot_keeper::BATCHES_PER_SNAPSHOT;
use canal_log::engine::Outage;
use canal_text::duration::stated_ms;

/// The greatest difference between the rates of two hosts' clocks, in thousandths.
const DRIFT: u64 = 10;

/// An operator's choices. Durations are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The time to live (T) that the host requests from the engine.
    pub ttl_ms: u64,
    /// How often to renew; `None` is T/6.
    pub renewal_ms: Option<u64>,
    /// From TERM to KILL (g); `None` is T/6.
    pub grace_ms: Option<u64>,
    /// From KILL to the end of the TTL (m); `None` is T/12.
    pub margin_ms: Option<u64>,
    /// A snapshot is made after this many batches.
    pub snapshot_batches: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ttl_ms: 60_000,
            renewal_ms: None,
            grace_ms: None,
            margin_ms: None,
            snapshot_batches: BATCHES_PER_SNAPSHOT,
        }
    }
}

/// The durations that follow from a TTL, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timing {
    /// The time to live (T).
    pub ttl_ms: u64,
    /// How often to renew.
    pub renewal_ms: u64,
    /// From TERM to KILL (g).
    pub grace_ms: u64,
    /// From KILL to the end of the TTL (m).
    pub margin_ms: u64,
}

impl Settings {
    /// The durations for a TTL. The engine may have granted another TTL than the requested one.
    ///
    /// # Errors
    /// The TTL leaves no room for three renewals, grace, margin and the clocks' drift, or the
    /// margin is shorter than that drift.
    pub(crate) fn check(&self, ttl_ms: u64) -> Result<Timing, String> {
        let timing = Timing {
            ttl_ms,
            renewal_ms: self.renewal_ms.unwrap_or(ttl_ms / 6).max(1),
            grace_ms: self.grace_ms.unwrap_or(ttl_ms / 6),
            margin_ms: self.margin_ms.unwrap_or(ttl_ms / 12),
        };
        let Timing { renewal_ms, grace_ms, margin_ms, .. } = timing;
        let drift_ms = ttl_ms.saturating_mul(DRIFT).div_ceil(1000);
        let needed_ms = [renewal_ms, renewal_ms, renewal_ms, grace_ms, margin_ms, drift_ms];
        let needed_ms = needed_ms.into_iter().fold(0, u64::saturating_add);
        if needed_ms <= ttl_ms && drift_ms <= margin_ms {
            return Ok(timing);
        }
        let [ttl, renewal, grace, margin, drift, needed] =
            [ttl_ms, renewal_ms, grace_ms, margin_ms, drift_ms, needed_ms].map(stated_ms);
        Err(if margin_ms < drift_ms {
            format!(
                "the margin of {margin} is shorter than {drift}, which is how far clocks may drift \
                 apart in a TTL of {ttl}"
            )
        } else {
            format!(
                "a TTL of {ttl} is too short: three renewals of {renewal}, the grace of {grace}, \
                 the margin of {margin} and {drift} of clock drift need {needed}"
            )
        })
    }
}

/// The outage for a TTL that leaves no time to stop commands.
pub(super) fn too_short(why: String) -> Outage {
    Outage::refused(why, Some("choose a longer TTL"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_07_the_defaults_fit_a_ttl_of_three_seconds_and_of_a_minute() {
        for ttl_ms in [3_000, 10_000, 60_000, 3_600_000] {
            let timing = Settings::default().check(ttl_ms).unwrap();
            assert_eq!((timing.renewal_ms, timing.grace_ms), (ttl_ms / 6, ttl_ms / 6));
            assert_eq!(timing.margin_ms, ttl_ms / 12);
        }
    }

    #[test]
    fn rule_07_a_ttl_that_leaves_no_time_to_stop_is_refused_in_words() {
        let settings = Settings { grace_ms: Some(30_000), ..Settings::default() };
        let refused = settings.check(60_000).unwrap_err();
        assert!(refused.contains("a TTL of 1m00s is too short"), "{refused}");
        assert!(refused.contains("need 1m05.6s"), "{refused}");
        settings.check(80_000).unwrap();
        let settings = Settings { margin_ms: Some(100), ..Settings::default() };
        let refused = settings.check(60_000).unwrap_err();
        assert!(refused.starts_with("the margin of 100ms is shorter"), "{refused}");
        let refused = Settings { renewal_ms: Some(u64::MAX), ..Settings::default() }.check(60_000);
        assert!(refused.unwrap_err().contains("is too short"));
        assert!(Settings::default().check(0).is_err(), "a TTL that expires at once");
    }
}
