//! Waits actively for a moment before the daemon sleeps.

use std::thread::{available_parallelism, yield_now};
use std::time::{Duration, Instant};

/// The longest spin. A sleep and a wake-up take about as long on a virtual machine.
const MOMENT: Duration = Duration::from_micros(50);

/// The most opportunities that are skipped between two spins.
const PASSED_MAX: u32 = 1024;

/// A sleep shorter than `MOMENT` counts as this many skipped opportunities: a spin would have paid.
const MISSED_WEIGHT: u32 = 16;

/// Spins briefly before the daemon sleeps, because a wake-up takes longer than most clients need to
/// send their next call. The kernel does the same for virtual processors
/// (Documentation/virt/kvm/halt-polling.rst). Unlike the kernel, this loop yields the processor
/// between two checks, because the client may be waiting for that processor.
///
/// Invariant: the daemon does not spin for clients that stay silent. Each fruitless spin doubles
/// how many opportunities to spin are skipped, up to 1,024.
#[derive(Debug)]
pub(crate) struct AdaptiveSpin {
    /// The number of opportunities skipped before the next spin; `None` means all of them.
    left: Option<u32>,
    /// The number of opportunities skipped after the last spin in total.
    passed: u32,
}

impl AdaptiveSpin {
    pub(crate) fn new() -> Self {
        // With a single processor, the client runs only while the daemon sleeps.
        let several = available_parallelism().is_ok_and(|count| count.get() > 1);
        Self { left: several.then_some(0), passed: 0 }
    }

    /// Calls `look` until it finds something, for `MOMENT` at most, or not at all if recent spins
    /// found nothing. Returns whether it found something.
    pub(crate) fn look(&mut self, mut look: impl FnMut() -> bool) -> bool {
        if self.left != Some(0) {
            self.pass_over(1);
            return false;
        }
        let begun = Instant::now();
        loop {
            let found = look();
            let elapsed = begun.elapsed();
            if found || elapsed > MOMENT {
                // If other threads had the processor for longer than this, a wake-up would have
                // been faster.
                self.learn(found && elapsed <= 2 * MOMENT);
                return found;
            }
            yield_now();
        }
    }

    /// Notes that the daemon slept for `time` until something happened, after a skipped or
    /// fruitless spin.
    pub(crate) fn slept(&mut self, time: Duration) {
        if time < MOMENT {
            self.pass_over(MISSED_WEIGHT);
        }
    }

    fn pass_over(&mut self, chances: u32) {
        self.left = self.left.map(|left| left.saturating_sub(chances));
    }

    fn learn(&mut self, paid: bool) {
        self.passed = if paid { 0 } else { (2 * self.passed).clamp(1, PASSED_MAX) };
        self.left = Some(self.passed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_millis(1);

    fn spin() -> AdaptiveSpin {
        AdaptiveSpin { left: Some(0), passed: 0 }
    }

    /// How many of `chances` opportunities are used for a spin if no spin finds anything.
    fn taken(spin: &mut AdaptiveSpin, chances: u32, slept: Duration) -> usize {
        let takes_one = |_: &u32| {
            let mut looked = false;
            spin.look(|| {
                looked = true;
                false
            });
            spin.slept(slept);
            looked
        };
        (0..chances).filter(takes_one).count()
    }

    #[test]
    fn spins_that_find_nothing_become_ever_rarer() {
        let mut spin = spin();
        assert_eq!(taken(&mut spin, 1023 + 10, LONG), 10, "1 + 2 + 4 + ... passed over");
        assert_eq!(taken(&mut spin, 10 * 1025, LONG), 10, "and never more rarely");
    }

    #[test]
    fn after_a_spin_that_found_work_the_next_spin_is_taken() {
        let mut spin = spin();
        taken(&mut spin, 1033, LONG);
        spin.learn(true);
        assert_eq!(taken(&mut spin, 1, LONG), 1);
    }

    #[test]
    fn work_soon_after_a_skipped_spin_brings_the_next_spin_forward() {
        let mut spin = spin();
        taken(&mut spin, 1033, LONG);
        assert_eq!(taken(&mut spin, 1024, LONG), 1);
        assert!(taken(&mut spin, 1024, Duration::ZERO) > 10);
    }

    #[test]
    fn with_one_processor_the_daemon_never_spins() {
        let mut spin = AdaptiveSpin { left: None, passed: 0 };
        assert_eq!(taken(&mut spin, 5000, Duration::ZERO), 0);
    }
}
