//! The failure detector: decides by this host's clock which other incarnations are gone.

use std::collections::BTreeMap;

use canal_core::HostId;
use canal_log::engine::{Alive, Evidence, Sign};

/// An incarnation is gone when its sign of life has not changed for this many thousandths of its
/// TTL. That is longer than the TTL because the other host measures it by another clock.
const SILENCE: u64 = 1100;

/// What this host has observed of an incarnation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observed {
    /// The engine's latest report of it.
    pub alive: Alive,
    /// When its current sign of life was first seen, in milliseconds of this host's CLOCK_BOOTTIME.
    /// Its last renewal was before that.
    pub since_ms: u64,
}

/// How long an incarnation with this TTL must be silent to count as gone.
pub(super) fn silence_ms(ttl_ms: u64) -> u64 {
    ttl_ms.saturating_mul(SILENCE).div_ceil(1000)
}

/// What this host has observed of all incarnations.
#[derive(Debug, Default)]
pub(super) struct FailureDetector {
    pub(super) seen: BTreeMap<HostId, Observed>,
    /// When each incarnation was last known to live, in milliseconds of this host's CLOCK_BOOTTIME.
    /// Kept while this host is not a member.
    pub(super) heard: BTreeMap<HostId, u64>,
}

impl FailureDetector {
    /// The longest TTL of these incarnations, and of another one.
    pub(super) fn longest_ttl_ms(&self, other_ms: u64) -> u64 {
        self.seen.values().map(|seen| seen.alive.ttl_ms).fold(other_ms, u64::max)
    }

    /// Records the engine's report of all incarnations that have not ended, which arrived at
    /// `now_ms`.
    pub(super) fn look(&mut self, now_ms: u64, alive: &[Alive]) {
        let (seen, heard) = (std::mem::take(&mut self.seen), std::mem::take(&mut self.heard));
        for alive in alive {
            let old = seen.get(&alive.host).filter(|old| old.alive.sign == alive.sign);
            let since_ms = old.map_or(now_ms, |old| old.since_ms);
            let heard_ms = match alive.sign {
                // The engine confirms at each check that it lives.
                Sign::Watched => Some(now_ms),
                Sign::Renewals(_) => Some(since_ms),
                Sign::Lapsed => heard.get(&alive.host).copied(),
            };
            self.seen.insert(alive.host, Observed { alive: *alive, since_ms });
            self.heard.extend(heard_ms.map(|heard_ms| (alive.host, heard_ms)));
        }
    }

    /// Restarts the wait for a sign of an incarnation.
    pub(super) fn look_anew(&mut self, host: HostId, now_ms: u64) {
        if let Some(seen) = self.seen.get_mut(&host) {
            seen.since_ms = now_ms;
        }
    }

    /// The evidence that an incarnation is gone, from an answer to a call sent at `asked_ms`: its
    /// sign was first seen when it arrived, and had not changed since.
    pub(super) fn evidence(&self, host: HostId, asked_ms: u64) -> Option<Evidence> {
        let Observed { alive, since_ms } = self.seen.get(&host)?;
        match alive.sign {
            Sign::Watched => None,
            Sign::Lapsed => Some(Evidence::Lapsed),
            Sign::Renewals(renewals) => {
                let silent_ms = silence_ms(alive.ttl_ms);
                #[cfg(test)]
                let silent_ms = crate::sim::unless_broken(
                    crate::sim::Rule::HostsLiveForTheirTtl,
                    silent_ms,
                    silent_ms / 2,
                );
                let gone = asked_ms >= since_ms.saturating_add(silent_ms);
                gone.then_some(Evidence::Silent { renewals })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: HostId = HostId(7);

    fn alive(sign: Sign) -> [Alive; 1] {
        [Alive { host: HOST, ttl_ms: 1000, sign }]
    }

    #[test]
    fn rule_05_a_host_counts_as_silent_after_its_ttl_and_a_tenth_on_the_observers_clock() {
        let mut watch = FailureDetector::default();
        watch.look(5_000, &alive(Sign::Renewals(3)));
        watch.look(5_900, &alive(Sign::Renewals(3)));
        assert_eq!(watch.evidence(HOST, 6_099), None);
        assert_eq!(watch.evidence(HOST, 6_100), Some(Evidence::Silent { renewals: 3 }));
        watch.look(6_100, &alive(Sign::Renewals(4)));
        assert_eq!(watch.evidence(HOST, 7_199), None, "it renewed");
        watch.look_anew(HOST, 7_000);
        assert_eq!(watch.evidence(HOST, 8_099), None);
    }

    #[test]
    fn a_host_was_last_heard_when_it_renewed_or_when_the_engine_said_that_it_lives() {
        let mut watch = FailureDetector::default();
        watch.look(1_000, &alive(Sign::Watched));
        watch.look(2_000, &alive(Sign::Watched));
        assert_eq!(watch.heard.get(&HOST), Some(&2_000));
        watch.look(3_000, &alive(Sign::Lapsed));
        assert_eq!(watch.heard.get(&HOST), Some(&2_000));
        watch.seen.clear();
        assert_eq!(watch.heard.get(&HOST), Some(&2_000), "it is still the last thing known");
        watch.look(4_000, &alive(Sign::Renewals(1)));
        watch.look(5_000, &alive(Sign::Renewals(1)));
        assert_eq!(watch.heard.get(&HOST), Some(&4_000));
        watch.look(6_000, &[]);
        assert_eq!(watch.heard.get(&HOST), None, "it has ended");
    }

    #[test]
    fn rule_05_an_engine_that_watches_hosts_is_believed_at_once() {
        let mut watch = FailureDetector::default();
        watch.look(0, &alive(Sign::Watched));
        assert_eq!(watch.evidence(HOST, 1_000_000), None);
        watch.look(1, &alive(Sign::Lapsed));
        assert_eq!(watch.evidence(HOST, 1), Some(Evidence::Lapsed));
        watch.look(2, &[]);
        assert_eq!(watch.evidence(HOST, 1_000_000), None, "it has ended");
    }
}
